"""Recognise blocks that convert an operand from a narrower type.

F[j, k] = float16(W[j, k]) * S[j]                     W of 8 bits
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import BYTE_DTYPES, FP8_DTYPES, HALF_DTYPES


def find_narrow(node: Any) -> Any:
    """Return the load of the narrower tensor that a block converts; None if it converts none.

    Its element is that of the operand; what else the block reads has one element a row.
    """
    store = node.body
    if node.init is not None or not isinstance(store, ir.BufferStore):
        return None
    if ir.dtype_of(store.buffer) not in HALF_DTYPES or len(store.indices) < 2:
        return None
    own = [x.var for x in node.iter_vars]
    if not all(any(x.same_as(v) for v in own) for x in store.indices):
        return None
    inner = store.indices[-1]
    loads = ir.find_all(store.value, ir.TensorLoad)
    moving = [x for x in loads if ir.depends_on(list(x.indices), [inner])]
    sources = ir.once([x.source for x in moving])
    if len(sources) != 1 or ir.find_all([list(x.indices) for x in loads], ir.TensorLoad):
        return None
    is_narrow = ir.dtype_of(sources[0]) in (*BYTE_DTYPES, *FP8_DTYPES)
    whole = [list(map(str, x.indices)) == list(map(str, store.indices)) for x in moving]
    return moving[0] if is_narrow and all(whole) else None
