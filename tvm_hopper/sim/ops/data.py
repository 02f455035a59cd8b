"""Data instructions of one warp, apart from the asynchronous engines."""

from __future__ import annotations

from tvm_hopper.sim.ops.barrier_votes import BarrierVoteOps
from tvm_hopper.sim.ops.cuda_helpers import CudaHelperOps
from tvm_hopper.sim.ops.generic_addresses import GenericAddressOps
from tvm_hopper.sim.ops.lane_values import LaneValueOps
from tvm_hopper.sim.ops.packed_atomics import PackedAtomicOps
from tvm_hopper.sim.ops.remote_stores import RemoteStoreOps
from tvm_hopper.sim.ops.vector_access import VectorAccessOps


class DataOps(
    VectorAccessOps,
    PackedAtomicOps,
    RemoteStoreOps,
    LaneValueOps,
    BarrierVoteOps,
    CudaHelperOps,
    GenericAddressOps,
):
    """A part of `Warp`."""
