"""Bound what WGMMA takes away where it sums products of float8 in float32.

    p = a * b        cut toward zero to q = 2 ** -13 of the largest number of its instruction
    c = c + ...      so is the sum, once in 32 products (`facts.arch.FLOAT8_SUM_BITS`)

How much is lost depends on the numbers: products of both signs lose little, at random; of one sign,
each loses half of q on average, and the sum falls short by percents (7% of 4096 positive numbers
of e4m3). So the bound follows the sum. With q = 2 ** -13 max(|c|, |p| so far), and d = min(q,
2 |p|), of which a product loses half on average, it adds up

    signed    d, with the sign of p
    squared   d ** 2; where p is larger than all before it, what its instruction lost of these, too
    cut       q / 32
    bound     signed / 2 + cut / 2 + sqrt(squared)

An error that is independent from product to product has a variance of d ** 2 / 12: the root is 3.5
standard deviations. At most 0.92 of the bound is seen, of normal, uniform and positive numbers,
of 13 powers of two and of rows with outliers, k 32 to 4096; 0.2 to 0.5 of it of normal numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, tirx
from tvm.script import tirx as T

from tvm_hopper.facts.arch import FLOAT8_SUM_BITS

from .plain import PlainProgram, dtype_of, nodes_in
from .reductions import added_term
from .rounding import const, magnitude

PRODUCTS = 32  # of an instruction
LARGEST, SIGNED, SQUARED, CUT = range(4)
NUM_CUTS = 4
UNIT = 2.0**-FLOAT8_SUM_BITS


def float8_sums(program: PlainProgram) -> set[Any]:
    """Return the float32 buffers that are sums of products of two float8."""
    found = set()
    for place in program.places:
        added = added_term(place.store)
        if added is not None and dtype_of(place.store.buffer) == "float32":
            loads = nodes_in(ir.TensorLoad, added[0])
            if sum(dtype_of(x).startswith("float8") for x in loads) > 1:
                found.add(place.store.buffer)
    return found


def no_cuts(cuts: Any, at: Any) -> list[Any]:
    """Begin a sum: it is cut nowhere."""
    return [_store(cuts, at, i, const(0)) for i in range(NUM_CUTS)]


def cut_term(cuts: Any, at: Any, before: Any, term: Any, after: Any) -> list[Any]:
    """Count one product, between the sums `before` and `after` it."""
    largest, signed, squared, cut = (_load(cuts, at, i) for i in range(NUM_CUTS))
    size = magnitude(term)
    known = T.max(largest, magnitude(before))
    grown = T.max(size * size - known * known, const(0)) * const(PRODUCTS * UNIT**2)
    unit = T.max(T.max(largest, size), magnitude(after)) * const(UNIT)
    lost = T.min(unit, size * const(2))
    return [
        _store(cuts, at, SIGNED, signed + tirx.Select(term < const(0), -lost, lost)),
        _store(
            cuts, at, SQUARED,
            squared + lost * lost + tirx.Select(largest > const(0), grown, const(0)),
        ),
        _store(cuts, at, CUT, cut + unit * const(1 / PRODUCTS)),
        _store(cuts, at, LARGEST, T.max(largest, size)),
    ]  # fmt: skip


def bound_of_cuts(cuts: Any, at: Any) -> Any:
    """Return the bound of one sum."""
    return sum_of_cuts([_load(cuts, at, i) for i in range(NUM_CUTS)], magnitude, T.sqrt)


def sum_of_cuts(parts: Any, size: Callable[[Any], Any], root: Callable[[Any], Any]) -> Any:
    """Add up what is known of a sum as expressions, or of many as arrays."""
    return size(parts[SIGNED] * 0.5) + parts[CUT] * 0.5 + root(parts[SQUARED])


def _load(cuts: Any, at: Any, which: int) -> Any:
    return cuts[at * NUM_CUTS + which]


def _store(cuts: Any, at: Any, which: int, value: Any) -> Any:
    return tirx.BufferStore(cuts, value, [at * NUM_CUTS + which])
