"""Move neighbours in registers by some elements, as words.

    before = 4 words, own = the 4 words after them, shift = 6 bytes
  ->
    16 bytes from the last 6 bytes of `before` on

Words are selected by each bit of the shift in words, then moved by the bytes that are left.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.programming_model import WORD_BYTES

WORD_BITS = 8 * WORD_BYTES


def bind_word(out: list[Any], name: str, value: Any) -> ir.Var:
    """Name a word, and append the statement that does."""
    var = ir.Var(name, "uint32")
    out.append(tirx.Bind(var, value))
    return var


def moved_words(words: list[Any], shift: Any, out: list[Any], whole: bool) -> list[Any]:
    """Return the words that begin `shift` bytes before the second half of some.

    - `words` (list of Expr): neighbours, uint32, a power of two of them.
    - `shift` (Expr): bytes, less than half of the words have.
    - `out` (list of Stmt): statements that name words are appended to it.
    - `whole`: whether the shift is always whole words.
    """
    half = len(words) // 2
    count, step = shift // WORD_BYTES, half // 2
    kept = words
    while step:
        bit = (count // step % 2).equal(1)
        pairs = zip(kept, kept[step:], strict=False)
        kept = [bind_word(out, "kept", tirx.Select(bit, x, y)) for x, y in pairs]
        step //= 2
    if whole:
        return kept[-half:]
    bits = tirx.Cast("uint32", shift % WORD_BYTES * 8)
    return [_joined(x, y, bits) for x, y in zip(kept[-half - 1 :], kept[-half:], strict=False)]


def _joined(low: Any, high: Any, bits: Any) -> Any:
    """Return the upper word of two that are moved up by some bits (`shf.l`)."""
    both = tirx.bitwise_or(
        tirx.shift_left(tirx.Cast("uint64", high), tirx.IntImm("uint64", WORD_BITS)),
        tirx.Cast("uint64", low),
    )
    moved = tirx.shift_right(
        tirx.shift_left(both, tirx.Cast("uint64", bits)), tirx.IntImm("uint64", WORD_BITS)
    )
    return tirx.Cast("uint32", moved)
