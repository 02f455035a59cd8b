"""Leave each thread its own part of a register array.

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

Before: thread axes are unified.  After: no dimension of a register array is that of a thread axis,
in kernels that are bound by memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound


@dataclass(frozen=True)
class OwnPart:
    """A register array, and its dimensions that number threads."""

    buffer: ir.Var
    dims: tuple[int, ...]


def plan_parts(kernel: ir.For) -> tuple[OwnPart, ...]:
    """Find the register arrays of a kernel of which a thread has a part."""
    axes = list(ir.thread_axes(kernel).values())
    blocks = ir.find_all(kernel, ir.SBlock)
    local = [b for block in blocks for b in block.alloc_buffers if str(b.scope()) == "local"]
    return tuple(
        OwnPart(buffer, dims) for buffer in local if (dims := _thread_dims(kernel, buffer, axes))
    )


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


def rewrite_parts(kernel: ir.For, plan: tuple[OwnPart, ...]) -> Any:
    """Give each array one element along the dimensions of threads."""
    for part in plan:
        old = part.buffer
        shape = [1 if i in part.dims else extent for i, extent in enumerate(old.shape)]
        alignment = int(old.ty.data_alignment)
        new = ir.new_buffer(old.name, tuple(shape), ir.dtype_of(old), "local", alignment)

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


@prim_func_pass(opt_level=0, name="tvm_hopper.OwnRegisters")
class OwnRegisters:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Take the threads' dimensions off the register arrays of one function."""

        def own(kernel: ir.For) -> Any:
            if not is_memory_bound(kernel) or not (plan := plan_parts(kernel)):
                return kernel
            after = rewrite_parts(kernel, plan)
            assert not plan_parts(after), "OwnRegisters left a dimension of threads"
            return after

        return ir.map_kernels(func, own)
