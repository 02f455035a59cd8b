"""Packed functions of TVM's runtime that host code calls: tensor maps, and facts of the device."""

from __future__ import annotations

import itertools
from typing import Any

from tvm_hopper.errors import VerifyError
from tvm_hopper.facts.arch import Arch
from tvm_hopper.sim.launch.tensor_map_object import broken_rules
from tvm_hopper.sim.launch.tensors import CUDA, Pointer
from tvm_hopper.sim.launch.tma import TensorMapArg

# runtime::DeviceAttrKind of TVM, with the values that every device returns (CUDA C++ Programming
# Guide, "Technical Specifications per Compute Capability").
MULTI_PROCESSOR_COUNT = 7
ATTRIBUTES = {
    0: 1,  # exist
    1: 1024,  # max_threads_per_block
    2: 32,  # warp_size
    3: 49152,  # max_shared_memory_per_block, without opting in
}
COMPUTE_VERSION = 4
MAX_REGISTERS_PER_BLOCK = 9


class TensorMapError(VerifyError):
    """The driver would refuse a tensor map: cuTensorMapEncodeTiled answers INVALID_VALUE."""


def device_attribute(args: list[Any], num_sms: int, arch: Arch) -> Any:
    """Answer `runtime.GetDeviceAttr(device_type, device_id, attr_kind)`.

    - raises VerifyError: the query is for another device than CUDA's, or its answer depends on more
      than the arch.
    """
    device, _, kind = (int(arg) for arg in args)
    if device != CUDA:
        raise VerifyError(f"runtime.GetDeviceAttr: found device type {device}; need {CUDA} (cuda)")
    answers = {
        **ATTRIBUTES,
        MULTI_PROCESSOR_COUNT: num_sms,
        COMPUTE_VERSION: "{}.{}".format(*arch.compute_capability),
        MAX_REGISTERS_PER_BLOCK: arch.registers_per_block,
    }
    if kind not in answers:
        raise VerifyError(
            f"runtime.GetDeviceAttr: found attribute {kind}; need one of {sorted(answers)}"
        )
    return answers[kind]


def encode_map(args: list[Any], im2col: bool = False) -> TensorMapArg:
    """Encode a tensor map from the arguments that follow its own address.

    TVM's wheel has no packed function for the im2col mode; a runtime that registers one takes the
    arguments of cuTensorMapEncodeIm2col in its order, as `runtime.cuTensorMapEncodeTiled` does with
    its own.

    - raises TensorMapError: the driver would refuse it.
    - raises VerifyError: the arguments are no tensor map's.
    """
    dtype, rank, pointer, *rest = args
    corners = (rank - 2, rank - 2) if im2col else ()
    counts = (rank, rank - 1, *corners, 2 if im2col else rank, rank, 4)
    dims, strides, *parts, box, steps, codes = _parts(pointer, rest, counts)
    found = TensorMapArg(
        *(pointer.tensor, str(dtype), dims, strides, box, steps, *codes, pointer.offset, *parts)
    )
    if broken := broken_rules(found):
        raise TensorMapError(f"tensor map of {found.tensor}: " + " and ".join(broken))
    return found


def _parts(pointer: Any, rest: list[Any], counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Divide the numbers after a tensor's address."""
    if not isinstance(pointer, Pointer):
        raise VerifyError(f"tensor map: found address {pointer!r}; need a tensor's data")
    numbers = [int(v) for v in rest]
    if len(numbers) != sum(counts) or min(counts) < 0:
        raise VerifyError(
            f"tensor map of {pointer.tensor}: found {len(numbers)} numbers for rank {counts[0]}; "
            f"need {sum(counts)}"
        )
    edges = [0, *itertools.accumulate(counts)]
    return [tuple(numbers[i:j]) for i, j in itertools.pairwise(edges)]
