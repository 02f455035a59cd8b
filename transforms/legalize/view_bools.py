"""Copy vectors of truth values as bytes: TVM's CUDA code gives each of a vector two.

    for v in vectorized(8):
        mask[v] = M[tx * 8 + v]                   bool
  ->
    M_bytes = decl_buffer(M.shape, "int8", data=M.data)
    mask_bytes = decl_buffer(mask.shape, "int8", data=mask.data)
    for v in vectorized(8):
        mask_bytes[v] = M_bytes[tx * 8 + v]

Part of LegalizeVectors, between registers and memory. What is computed of truth values, and tiles
of them in shared memory, stay as they are: one at a time.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_requested
from tvm_hopper.transforms.kernel_pass import kernel_step


def plan_bools(kernel: ir.For) -> tuple[ir.For, ...]:
    """Return the vectorized loops that copy truth values."""
    loops = ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED)
    return tuple(x for x in loops if _copies_bools(x))


def _copies_bools(loop: ir.For) -> bool:
    stores = ir.find_all(loop.body, ir.BufferStore)
    return bool(stores) and all(
        isinstance(x.value, ir.TensorLoad)
        and ir.dtype_of(x.value) == "bool"
        and {str(y.scope()) for y in (x.buffer, x.value.source)} == {"local", "global"}
        and not any(y.ty.strides for y in (x.buffer, x.value.source))
        for x in stores
    )


def rewrite_bools(kernel: ir.For, plan: tuple[ir.For, ...]) -> Any:
    """Let these loops copy bytes."""
    return ir.replace_nodes(kernel, ir.For, {x: _by_bytes(x) for x in plan})


def _by_bytes(loop: ir.For) -> ir.Stmt:
    views: dict[ir.Var, ir.Var] = {}

    def view(buffer: ir.Var) -> ir.Var:
        if buffer not in views:
            views[buffer] = tirx.decl_buffer(
                buffer.shape,
                "int8",
                f"{buffer.name}_bytes",
                elem_offset=buffer.ty.elem_offset,  # of elements: bytes, both times
                scope=str(buffer.scope()),
                layout=None,
            )
        return views[buffer]

    def load(node: ir.TensorLoad, mutator: Any) -> Any:
        if ir.dtype_of(node) != "bool":
            return mutator.default_mutate(node)
        return tirx.BufferLoad(view(node.source), list(node.indices))

    def store(node: ir.BufferStore, mutator: Any) -> ir.BufferStore:
        value = mutator.mutate(node.value)
        return ir.BufferStore(view(node.buffer), value, list(node.indices))

    copy = ir.mutate(loop, [(ir.TensorLoad, load), (ir.BufferStore, store)])
    return ir.seq([tirx.DeclBuffer(new, data=old.data) for old, new in views.items()], copy)


copy_bools_as_bytes = kernel_step(plan_bools, rewrite_bools, when=is_requested)
