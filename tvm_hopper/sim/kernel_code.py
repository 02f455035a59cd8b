"""A device function ready to run: its generator, and the class of warps that it calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from numbers import Number
from typing import Any

from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.sim import ending
from tvm_hopper.sim.findings import Finding
from tvm_hopper.sim.launch.limits import check_launch, missing_instructions, say_large
from tvm_hopper.sim.machine.warp import WarpCore
from tvm_hopper.sim.ops.atomics import AtomicOps, PackedAtomicOps
from tvm_hopper.sim.ops.blame import BlameOps
from tvm_hopper.sim.ops.bulk import BulkOps
from tvm_hopper.sim.ops.cluster_barrier import ClusterBarrierOps
from tvm_hopper.sim.ops.collective import CollectiveOps
from tvm_hopper.sim.ops.cp_async import CpAsyncOps
from tvm_hopper.sim.ops.cuda_helpers import CudaHelperOps
from tvm_hopper.sim.ops.fences import FenceOps
from tvm_hopper.sim.ops.gather import GatherOps
from tvm_hopper.sim.ops.grid_barrier import GridOps
from tvm_hopper.sim.ops.lane_values import LaneValueOps
from tvm_hopper.sim.ops.mbarrier import MBarrierOps
from tvm_hopper.sim.ops.mbarrier_arrivals import MBarrierArrivalOps
from tvm_hopper.sim.ops.mma import MatrixOps, MmaOps
from tvm_hopper.sim.ops.named import NamedOps
from tvm_hopper.sim.ops.order import GenericAddressOps, OrderOps
from tvm_hopper.sim.ops.remote_stores import RemoteStoreOps
from tvm_hopper.sim.ops.tensor_copies import TensorCopyOps
from tvm_hopper.sim.ops.tensor_maps import TensorMapOps
from tvm_hopper.sim.ops.vector_access import VectorAccessOps
from tvm_hopper.sim.ops.wgmma import WgmmaOps
from tvm_hopper.sim.tir import COOPERATIVE, arch_of_kernel, launch_tags, num_sms_of_kernel
from tvm_hopper.sim.translate.scope import KernelCode
from tvm_hopper.sim.translate.translate import compile_kernel


class Warp(
    WarpCore,
    AtomicOps,
    BlameOps,
    FenceOps,
    GatherOps,
    ClusterBarrierOps,
    CollectiveOps,
    MBarrierOps,
    MBarrierArrivalOps,
    NamedOps,
    OrderOps,
    BulkOps,
    CpAsyncOps,
    VectorAccessOps,
    PackedAtomicOps,
    RemoteStoreOps,
    LaneValueOps,
    CudaHelperOps,
    GenericAddressOps,
    GridOps,
    MatrixOps,
    MmaOps,
    TensorCopyOps,
    TensorMapOps,
    WgmmaOps,
):
    """A warp with all its instructions."""

    def exit(self) -> None:
        """End this warp; the last of a CTA ends the CTA."""
        self.finished = True
        ending.warp_exit(self)
        if all(w.finished for w in self.cta.warps):
            self.cta.exited = True
        self.leave_named()
        self._settle_cluster(self.cta.cluster_barrier)
        self.leave_grid()
        if self.cta.exited and all(cta.exited for cta in self.cta.cluster):
            self.machine.cluster_exited(self.cta.cluster)


HANDLERS = {
    name: inspect.isgeneratorfunction(getattr(Warp, name))
    for name in dir(Warp)
    if name.startswith("op_")
}


@functools.lru_cache(maxsize=32)
def compiled(func: Any) -> KernelCode:
    """Return the generator of a device function and facts about it, made once."""
    return compile_kernel(func, HANDLERS)


def touched_tensors(func: Any, params: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the tensors that some statement of a device function stores to, and loads from."""
    program = compiled(func)
    stored, loaded = (
        {
            getattr(params[name], "tensor", name)
            for name in names
            if name in params and not isinstance(params[name], Number)  # its places are counted
        }
        for names in (program.stored_params, program.loaded_params)
    )
    return stored, loaded


def launch_findings(
    func: Any, setup: dict[str, Any], num_sms: int = DEFAULT_NUM_SMS
) -> list[Finding]:
    """Return the rules that a launch of a device function breaks, whatever it computes.

    Also checks its instructions: a kernel that the assembler refuses is not launched.
    """
    name = str((func.attrs or {}).get("global_symbol", "kernel"))
    setup = {**setup, "cooperative": COOPERATIVE in launch_tags(func)}
    arch, sms = arch_of_kernel(func), sms_of_launch(func, num_sms)
    limits = check_launch(name, setup, compiled(func).shared, arch, num_sms, sms)
    return [*limits, *_refused_instructions(func)]


def sms_of_launch(func: Any, num_sms: int) -> int:
    """Return the SMs that a launch can count on: of the device, or fewer that its target names."""
    return min(num_sms, num_sms_of_kernel(func) or num_sms)


def say_cluster(func: Any, setup: dict[str, Any], num_sms: int = DEFAULT_NUM_SMS) -> list[str]:
    """Name the devices that run a cluster with more thread blocks than every device supports."""
    name = str((func.attrs or {}).get("global_symbol", "kernel"))
    return say_large(name, setup, arch_of_kernel(func), sms_of_launch(func, num_sms))


@functools.lru_cache(maxsize=32)
def _refused_instructions(func: Any) -> list[Finding]:
    return missing_instructions(func, arch_of_kernel(func))
