"""Exchange pairs of columns between the four lanes of a row, so that each stores eight.

    thread     0   1   2   3                  0   1   2   3
    g + 0      a0  a1  a2  a3                 a0  b0  c0  d0
    g + 1      b0  b1  b2  b3        ->       a1  b1  c1  d1
    g + 2      c0  c1  c2  c3                 a2  b2  c2  d2
    g + 3      d0  d1  d2  d3                 a3  b3  c3  d3

A pair of 16-bit values is one word of 32 bits. Of 8 bits a word has the pairs of two eights, g and
g + 1, so that a thread gets 16 columns; it then sorts the halves of its words.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx.mma_sync import halves
from tvm_hopper.codegen_patches.ptx.registers import shuffle_xor

ROW_THREADS = 4  # threads that hold one row's columns, two each of every eight
RUN = 2 * ROW_THREADS  # columns that they hold together, and that one of them stores after exchange


def sort_halves(words: ir.Var, first: Any = 0) -> list[Any]:
    """Put the lower halves of four words in front of their upper halves.

    They are those of an array from the one with number `first` on.
    """
    got = [ir.Var(f"word_{i}", "uint32") for i in range(ROW_THREADS)]
    out: list[Any] = [
        tirx.Bind(var, tirx.BufferLoad(words, [first + i])) for i, var in enumerate(got)
    ]
    for i, (which, pair) in enumerate(product((0, 1), (0, 2))):  # lower halves first
        to = tirx.BufferLoad(words, [first + i])
        out.append(tirx.Evaluate(halves(to, got[pair], got[pair + 1], which)))
    return out


def exchange(words: ir.Var, lane: Any, first: Any = 0) -> list[Any]:
    """Transpose four words between four threads: two rounds of swapping halves of pairs.

    They are those of an array from the one with number `first` on.
    """
    out: list[Any] = []
    for distance, pairs in ((1, ((0, 1), (2, 3))), (2, ((0, 2), (1, 3)))):
        upper = (lane // distance % 2).equal(1)
        for low, high in pairs:
            mine, other = (tirx.BufferLoad(words, [first + i]) for i in (low, high))
            got = ir.Var("got", "uint32")
            sent = tirx.Select(upper, mine, other)
            out += [
                tirx.Bind(got, shuffle_xor(sent, distance)),
                ir.BufferStore(words, tirx.Select(upper, got, mine), [first + low]),
                ir.BufferStore(words, tirx.Select(upper, other, got), [first + high]),
            ]
    return out
