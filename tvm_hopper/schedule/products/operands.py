"""Prefetch epilogue operands of the output's shape into shared memory.

    for piece in range(store.parts):                              pipelined, store.operand_slots
        shared = residual[rows, columns of a piece]               by TMA, with the next A and B
        staging[rows, columns of a piece] = f(accumulator, shared)
        output[rows, columns of a piece] = staging

Otherwise the threads that hold the accumulator read a residual from global memory after each
product, four bytes at a time. The producer of the pipeline loads it while the product is still
under way.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.swizzle import CHUNK_BYTES, SWIZZLES, span_bytes
from tvm_hopper.schedule import steps

from .axes import walk_as_one
from .fuse import followers


def operand_dtypes(sch: s_tir.Schedule, block: Any) -> tuple[str, ...]:
    """List the types of the tensors that the blocks after a product read as a whole, and TMA can.

    - `sch`: not changed.
    - `block` (SBlockRV): the multiply-add, in plain loops.
    """
    seen: list[Any] = [sch.get(block)]
    chain: list[Any] = [block]
    found: list[Any] = []
    shape = sch.get(block).writes[0].source.shape
    while chain:
        for reader in [*followers(sch, chain.pop())]:
            if any(sch.get(reader).same_as(x) for x in seen):
                continue
            seen.append(sch.get(reader))
            chain.append(reader)
            found += [
                x for x in _sources(sch, reader, seen) if not any(x.same_as(y) for y in found)
            ]
    return tuple(
        ir.dtype_of(x)
        for x in found
        if tvm_ffi.structural_equal(x.shape, shape) and _is_loadable(x)
    )


def _sources(sch: s_tir.Schedule, reader: Any, chain: list[Any]) -> list[Any]:
    """Return the tensors that a block reads, itself or by blocks that are inlined into it."""
    sources = [x.source for x in sch.get(reader).reads]
    for producer in sch.get_producers(reader):
        node = sch.get(producer)
        made = [x.source for x in node.writes]
        sources = [x for x in sources if not any(x.same_as(y) for y in made)]
        if not any(node.same_as(x) for x in chain) and node.init is None:
            sources += _sources(sch, producer, chain)
    written = [x.source for node in chain for x in node.writes]
    return [x for x in sources if not any(x.same_as(y) for y in written)]


def _is_loadable(tensor: Any) -> bool:
    return not len(tensor.ty.strides) and is_loadable(tensor.shape, ir.dtype_of(tensor))


def is_loadable(shape: Any, dtype: str) -> bool:
    """Tell whether a compact tensor has rows of known length at multiples of 16 bytes (TMA)."""
    row = ir.static_int(shape[-1])
    return row is not None and row * dtype_bytes(dtype) % CHUNK_BYTES == 0


def stage_operands(sch: s_tir.Schedule, store: Any, piece: Any, slots: int) -> int:
    """Let the tensors that a store reads element by element come through shared memory.

    - `store` (SBlockRV): the store of the accumulator to its staging, with all that follows the
      product fused.
    - `piece` (LoopRV): the loop over its parts.
    - `slots`: pieces that are loaded ahead.
    - returns: how many of them do; threads load what the others hold.
    """
    tensors = _read_by_element(sch, store)
    for tensor in tensors:
        index = next(i for i, x in enumerate(sch.get(store).reads) if x.source.same_as(tensor))
        copy = sch.cache_read(store, index, "shared.dyn")
        walk_as_one(sch, copy, "write", sch.get(store).body)
        sch.compute_at(copy, piece)
        columns = ir.static_int(sch.get(sch.get_loops(copy)[-1]).extent) or 0
        swizzle = widest_swizzle(columns * dtype_bytes(ir.dtype_of(tensor)))
        steps.async_copy(sch, copy, "tma", swizzle)
    if tensors:
        steps.pipeline(sch, piece, slots)
    return len(tensors)


def _read_by_element(sch: s_tir.Schedule, store: Any) -> list[Any]:
    """Return the tensors of which a store reads the element that it stores, and no other."""
    node = sch.get(store)
    written = [y.source for x in sch.get_consumers(store) for y in sch.get(x).writes]
    loads = [x for x in ir.find_all(node.body, ir.TensorLoad) if str(x.source.scope()) == "global"]
    found = []
    for tensor in ir.once([x.source for x in loads]):
        mine = [x.indices for x in loads if x.source.same_as(tensor)]
        whole = all(tvm_ffi.structural_equal(x, node.body.indices) for x in mine)
        if whole and _is_loadable(tensor) and not any(tensor.same_as(x) for x in written):
            found.append(tensor)
    return found


def widest_swizzle(row_bytes: int) -> int:
    """Return the widest pattern whose rows make up those of a tile: readers then use all banks."""
    fitting = [x for x in SWIZZLES if row_bytes % span_bytes(x) == 0]
    return max(fitting, default=0) if row_bytes % CHUNK_BYTES == 0 else 0
