"""Index vectors that go over the end of a row by their first element.

    for v in vectorized(8):
        tile[v] = X[bx // 98, (bx * 256 + tx * 8 + v) % 25088 // 28, (bx * 256 + tx * 8 + v) % 28]
  ->
    for v in vectorized(8):                              n = (bx * 256 + tx * 8) % 25088
        tile[v] = X[bx // 98, (n + v) // 28, (n + v) % 28]

TVM proves that elements lie side by side for the second form, and for parts of it. Of the first it
loads each element by itself.

Before: conditions are on opaque blocks.  After: in vectors of a kernel that is bound by memory,
dimensions that no vector crosses do not depend on the element.
Not here: vectors within a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.kernel_pass import kernel_step


@dataclass(frozen=True)
class JoinedRows:
    """An access of a vector, and the indices that it gets."""

    access: Any
    indices: tuple[Any, ...]


def plan_rows(kernel: ir.For) -> tuple[JoinedRows, ...]:
    """Find the vectors in memory that go over the end of a row."""
    found = []
    for loop in ir.find_all(kernel, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED):
        stores = ir.find_all(loop.body, ir.BufferStore)
        loads = [x for store in stores for x in ir.find_all(store.value, ir.TensorLoad)]
        for access in (*stores, *loads):
            if (indices := _joined(access, loop)) is not None:
                found.append(JoinedRows(access, tuple(indices)))
    return tuple(found)


def _joined(access: Any, loop: ir.For) -> list[Any] | None:
    """Return the indices of an access by its first element; None where they stay."""
    tensor = access.buffer if isinstance(access, ir.BufferStore) else access.source
    lane, lanes, shape = loop.loop_var, ir.static_int(loop.extent), tensor.shape
    if lanes is None or not ir.depends_on(list(access.indices)[:-1], [lane]):
        return None
    if str(tensor.scope()) not in ("", "global") or list(tensor.strides):
        return None
    first = ir.first_element(access.indices, shape, lane, lanes)
    if first is None or len(first) == len(shape):
        return None
    indices = ir.indices_from(first, lane, shape)
    known = zip(indices, access.indices, strict=True)
    return None if all(tvm_ffi.structural_equal(x, y) for x, y in known) else indices


def rewrite_rows(kernel: ir.For, plan: tuple[JoinedRows, ...]) -> ir.For:
    """Give the accesses their indices."""
    joined = {x.access: x.indices for x in plan}
    loads = {
        x: tirx.BufferLoad(x.source, y) for x, y in joined.items() if isinstance(x, ir.TensorLoad)
    }
    stores = {
        x: ir.BufferStore(x.buffer, ir.replace_nodes(x.value, ir.TensorLoad, loads), y)
        for x, y in joined.items()
        if isinstance(x, ir.BufferStore)
    }
    kernel = ir.replace_nodes(kernel, ir.BufferStore, stores)
    return ir.replace_nodes(kernel, ir.TensorLoad, loads)


join_vector_rows = kernel_step(plan_rows, rewrite_rows, when=is_memory_bound)
