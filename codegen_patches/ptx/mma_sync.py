"""mma.sync: multiplication by one warp, and its operands (PTX ISA 9.1, 9.7.14.5.14).

All 32 lanes execute each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script import tirx as T

TYPES = {"float16": "f16", "bfloat16": "bf16"}
_PAIRS = (0x5410, 0x7632)  # of two words, their lower halves, and their upper ones


def mma(dtype: str, d: Sequence[Any], a: Sequence[Any], b: Sequence[Any]) -> Any:
    """Compute `d = a b + d` for 16 rows, 8 columns and a depth of 16, in float32.

    `d` are four registers of float32, `a` four and `b` two words of two elements of `dtype`.
    """
    kind = TYPES[dtype]
    return T.ptx[f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"](*d, *a, *b, *d)


def halves(to: Any, low: Any, high: Any, which: int) -> Any:
    """Put the lower halves (0) or the upper ones (1) of two words into one (9.7.9.7 prmt)."""
    return T.ptx["prmt.b32"](to, low, high, T.uint32(_PAIRS[which]))
