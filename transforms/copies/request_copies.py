"""Request a mechanism for the plain copies of a schedule that request none themselves."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.requests.keys import ASYNC_COPY, STORE_SLOTS


def request_copies(
    func: tirx.PrimFunc, mechanism: str, *, are_loads: bool, slots: int | None = None
) -> tirx.PrimFunc:
    """Return a function whose copies between global and shared memory request a mechanism.

    Parameters
    ----------
    func : PrimFunc
        Blocks that carry the key already stay as they are.
    mechanism : str
        A value of `tvm_hopper.async_copy`.
    are_loads : bool
        Copies into shared memory; else those out of it.
    slots : int, optional
        Slots of each stored tile (`tvm_hopper.store_slots`).
    """

    def visit(block: ir.SBlock, mutator: Any) -> ir.SBlock:
        new = mutator.default_mutate(block)
        if ASYNC_COPY in new.annotations or not _is_copy(new.body, are_loads):
            return new
        more = {} if slots is None else {STORE_SLOTS: slots}
        return ir.with_block(new, annotations={**new.annotations, ASYNC_COPY: mechanism, **more})

    return func.with_body(ir.mutate(func.body, [(ir.SBlock, visit)]))


def _is_copy(store: Any, is_load: bool) -> bool:
    if not isinstance(store, ir.BufferStore) or not isinstance(store.value, ir.TensorLoad):
        return False
    ends = (store.value.source, store.buffer)
    source, target = ends if is_load else ends[::-1]
    return str(source.scope()) in ("", "global") and ir.is_shared(target)
