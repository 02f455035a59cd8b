"""Size a persistent kernel's grid on the host, by the device of the launch.

Which device that is, a host function learns from its tensors, once it is packed:

    dev_id = tensor argument 0 .device_id
    num_blocks = call_packed("tvm_hopper.count_blocks", 40, 1)      40 output tiles, one slice
    launch(kernel, ..., num_blocks)
  ->
    dev_id = tensor argument 0 .device_id
    num_sms = call_packed("runtime.GetDeviceAttr", 2, dev_id, 7)    132 on an H200
    turns = ceildiv(40 * 1, num_sms)                                tiles of the block that has most
    num_blocks = ceildiv(40, turns)                                 no more than the slowest needs
    launch(kernel, ..., num_blocks)

Clusters do not fill all SMs, since each lies in one part of the chip:

    num_blocks = call_packed("tvm_hopper.count_blocks", 40, 4, 30)  clusters of 4, of which 30 fit
  ->                                                                on 132 SMs at once
    turns = ceildiv(40, num_sms * 30 // 132)

Where there may be fewer tiles, which a table counts, blocks are as many as run at once:

    num_blocks = call_packed("tvm_hopper.count_blocks", 40, 1, 0, 1)
  ->
    num_blocks = min(40, num_sms)

TVM's host checks that all tensors are on the same device, and makes it the current one.  The
function asked is a part of TVM's C++ runtime.  It calls `cudaDeviceGetAttribute`, which is no work
on a stream and so may be captured in a CUDA graph.  Until here the count is a call that TVM sees
nothing of: with the arithmetic in sight its simplifiers took three times as long over the kernel.

Before: the host function is packed.  After: nothing is left to count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import StringImm

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS, Chip
from tvm_hopper.transforms.kernel_pass import planned_pass

COUNT = "tvm_hopper.count_blocks"  # no function has this name: a call that is left is an error
GET_ATTRIBUTE = "runtime.GetDeviceAttr"
CUDA = 2  # DLPack's kDLCUDA
NUM_SMS = 7  # DeviceAttrKind::kMultiProcessorCount of tvm/runtime/device_api.h


@dataclass(frozen=True)
class BlockCount:
    """One count: tiles of a slice of the grid, slices, and the variable that names the device."""

    bind: tirx.Bind
    tiles: Any
    slices: Any
    device: ir.Var
    clusters: int | None = None  # that as many SMs as usual hold, where slices are blocks of one
    at_most: bool = False  # there may be fewer tiles, which the device alone knows


def ask_count(
    tiles: Any, slices: Any = 1, in_cluster: bool = False, at_most: bool = False
) -> ir.Call:
    """Build a host expression for the thread blocks that share output tiles.

    With `in_cluster` the slices are the blocks of a cluster. With `at_most` there may be fewer
    tiles: blocks are as many as the device holds.
    """
    size = ir.static_int(slices)
    clusters = Chip().clusters(size) if in_cluster and size is not None else 0
    more = (clusters, 1) if at_most else (clusters,) if clusters else ()
    return tirx.call_packed(COUNT, tiles, slices, *more)


def plan_counts(func: tirx.PrimFunc) -> tuple[BlockCount, ...]:
    """Find what is to count in a packed host function, and its device."""
    if not ir.is_packed(func):
        return ()
    binds = ir.find_all(func.body, tirx.Bind)
    counts = [bind for bind in binds if _is_count(bind.value)]
    if not counts:
        return ()
    devices = [bind.var for bind in binds if ir.is_device_id(bind.value)]
    if not devices:
        raise cannot_lower(
            str(func.attrs.get("global_symbol", "a host function")).removeprefix("__tvm_ffi_"),
            "a kernel launch without a tensor argument",
            "one, which tells the device",
        )
    found = []
    for bind in counts:
        tiles, slices, *more = bind.value.args[1:]
        clusters = int(more[0]) or None if more else None
        found.append(BlockCount(bind, tiles, slices, devices[0], clusters, len(more) > 1))
    return tuple(found)


def _is_count(value: Any) -> bool:
    first = value.args[0] if isinstance(value, ir.Call) and len(value.args) else None
    return isinstance(first, StringImm) and first.value == COUNT


def rewrite_counts(func: tirx.PrimFunc, plan: tuple[BlockCount, ...]) -> tirx.PrimFunc:
    """Ask for the SMs and compute each count."""
    return func.with_body(
        ir.replace_nodes(func.body, tirx.Bind, {count.bind: _compute(count) for count in plan})
    )


def _compute(count: BlockCount) -> ir.Stmt:
    num_sms, turns = ir.Var("num_sms", "int32"), ir.Var("turns", "int32")
    # There is a tile, or LowerAsyncCopies launches nothing; and 2**30 of them would fill a
    # terabyte.
    most = tirx.truncdiv(count.tiles * count.slices + num_sms - 1, num_sms)
    at_once = tirx.max(tirx.truncdiv(num_sms, count.slices), 1)
    if count.clusters is not None:
        at_once = tirx.max(tirx.truncdiv(num_sms * count.clusters, DEFAULT_NUM_SMS), 1)
        most = tirx.truncdiv(count.tiles + at_once - 1, at_once)
    blocks = tirx.truncdiv(count.tiles + turns - 1, turns)
    if count.at_most:
        blocks = tirx.min(count.tiles, at_once)
    return ir.seq(
        tirx.Bind(num_sms, tirx.call_packed(GET_ATTRIBUTE, CUDA, count.device, NUM_SMS)),
        tirx.Bind(turns, ir.simplify(most)),
        tirx.Bind(count.bind.var, ir.simplify(blocks)),
    )


SizePersistentGrid = planned_pass("SizePersistentGrid", plan_counts, rewrite_counts)
