"""Move static shared arrays to dynamic shared memory."""

from __future__ import annotations

from tvm_hopper import ir

STATIC, DYNAMIC = "shared", "shared.dyn"


def in_dynamic_memory(kernel: ir.For) -> ir.For:
    """Move the static shared arrays of a kernel to its dynamic shared memory."""
    for block in ir.find_all(kernel, ir.SBlock):
        for old in block.alloc_buffers:
            if old.scope() == STATIC:
                kernel = _move(kernel, old)
    return kernel


def _move(kernel: ir.For, old: ir.Var) -> ir.For:
    new = ir.new_buffer(
        old.name, tuple(old.shape), ir.dtype_of(old), DYNAMIC, int(old.ty.data_alignment)
    )
    return ir.reallocate(ir.reindex(kernel, old, new, lambda x: x, lambda x: x), old, new)
