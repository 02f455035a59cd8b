"""Shrink register arrays to the part that one thread uses.

    part = alloc_buffer((2, 256, 8), "float16", scope="local")
    for tx in thread_binding(256, "threadIdx.x"):
        for c in unroll(2):
            for v in vectorized(8):
                part[c, tx, v] = X[c * 2048 + tx * 8 + v]
  ->
    part = alloc_buffer((2, 1, 8), "float16", scope="local")
    ...
                part[c, 0, v] = X[c * 2048 + tx * 8 + v]

A tile of registers that several blocks share is allocated around their threads, so that TVM counts
the elements of all threads.  Indexed by the thread it would lie in local memory, which is memory.

If the row length is known at run time only, TVM declares arrays with its minimum with a thread's
part: registers have the latter.

Before: thread axes are unified.  After: no dimension of a register array is that of a thread axis,
or unknown, in kernels that are bound by memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.kernel_pass import kernel_pass

_UNBOUNDED = 1 << 16  # elements, more than any thread has registers


@dataclass(frozen=True)
class RegisterPart:
    """A register array, its dimensions that number threads, and the shape that a thread needs."""

    buffer: ir.Var
    dims: tuple[int, ...]
    shape: tuple[Any, ...]


def plan_parts(kernel: ir.For) -> tuple[RegisterPart, ...]:
    """Find the register arrays of a kernel of which a thread has a part."""
    axes = list(ir.thread_axes(kernel).values())
    blocks = ir.find_all(kernel, ir.SBlock)
    local = [b for block in blocks for b in block.alloc_buffers if str(b.scope()) == "local"]
    found = []
    for buffer in local:
        dims = _thread_dims(kernel, buffer, axes)
        old = list(buffer.shape)
        shape = tuple(1 if i in dims else _known(x) for i, x in enumerate(old))
        if any(x is not y for x, y in zip(old, shape, strict=True)):
            found.append(RegisterPart(buffer, dims, shape))
    return tuple(found)


def _known(extent: Any) -> Any:
    """Return the most that an extent can be: TVM says so where a row's end comes first."""
    if ir.static_int(extent) is not None:
        return extent
    most = int(sym.Analyzer().const_int_bound(extent).max_value)
    return most if most < _UNBOUNDED else extent


def _thread_dims(kernel: ir.For, buffer: ir.Var, axes: list[ir.For]) -> tuple[int, ...]:
    """Return the dimensions that every access indexes by the same thread axis, as long as it is."""
    touched = ir.accesses(kernel, buffer)
    if any(isinstance(x, ir.Call) for x in touched):  # a pointer, whose elements keep their order
        return ()
    return tuple(
        dim
        for dim, extent in enumerate(buffer.shape)
        for axis in axes
        if ir.static_int(extent) != 1
        and ir.static_int(extent) == ir.static_int(axis.extent)
        and all(x.indices[dim].same_as(axis.loop_var) for x in touched)
    )


def rewrite_parts(kernel: ir.For, plan: tuple[RegisterPart, ...]) -> Any:
    """Give each array one element along the dimensions of threads."""
    for part in plan:
        old = part.buffer
        alignment = int(old.ty.data_alignment)
        new = ir.new_buffer(old.name, part.shape, ir.dtype_of(old), "local", alignment)

        def index(indices: list[Any], dims: tuple[int, ...] = part.dims) -> list[Any]:
            zero = {i: tirx.IntImm(ir.dtype_of(indices[i]), 0) for i in dims}
            return [zero.get(i, x) for i, x in enumerate(indices)]

        def region(ranges: list[Any], dims: tuple[int, ...] = part.dims) -> list[Any]:
            one = {
                i: tvm.ir.Range.from_min_extent(
                    tirx.IntImm(ir.dtype_of(ranges[i].min), 0),
                    tirx.IntImm(ir.dtype_of(ranges[i].extent), 1),
                )
                for i in dims
            }
            return [one.get(i, x) for i, x in enumerate(ranges)]

        kernel = ir.reindex(ir.reallocate(kernel, old, new), old, new, index, region)
    return kernel


PartitionRegisterArrays = kernel_pass(
    "PartitionRegisterArrays", plan_parts, rewrite_parts, when=is_memory_bound
)
