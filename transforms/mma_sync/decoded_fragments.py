"""Decode the first operand of mma.sync in the lane that multiplies it. Part of LowerMmaSync.

    for i, kk in grid(16, 128):
        B_local[i, kk] = (float16(W[n + i, (k0 + kk) // 8] >> kk % 8 * 4 & 15) - 7) * S[n + i, k]
  ->
    for h in unroll(2):
        for v in vectorized(4): W_local[4 h + v] = W[n + 8 h + g, k0 // 8 + 4 t + v]
        S_local[h] = S[n + 8 h + g, k]
    for s in unroll(8):
        for i, h in unroll(2, 2):                      two neighbours at once, each as written
            words[2 i + h] = mul(nibbles(W_local[4 h + s // 2], ...), both_halves(S_local[h]))
        mma.sync(C, words, A_local words)

A lane holds as many neighbours of a row as 16 bytes of the packed tensor make. The order of a sum
is free: the second operand is taken in the same one (lower_mma_sync_plan.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir as tvm_ir, sym, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.divisors import divides
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.facts.programming_model import THREAD_ACCESS_BYTES
from tvm_hopper.transforms.common.operand_pairs import Field, HalfPair, in_32_bits, is_apart
from tvm_hopper.transforms.common.shared_pair_loads import SharedPair

WIDTHS = (64, 32, 16, 8)  # neighbours of a row that a lane may hold, the most first
LANES = 4  # that have neighbours of a row
HALF_WORD = 4  # nibbles
WORDS = 4  # of the first operand of an instruction


@dataclass(frozen=True)
class PackedLoad:
    """A load of a decoder: `count` elements, of which each serves `run` neighbours of a row."""

    load: ir.TensorLoad
    count: int
    run: int

    @property
    def num_bytes(self) -> float:
        """Bytes of the elements of one lane."""
        return self.count * DTYPES[ir.dtype_of(self.load)].num_bytes


@dataclass(frozen=True)
class Decoded:
    """How an operand is computed from what a lane loads.

    - `value`: of an element.
    - `loads`: the packed tensor's first.
    - `width`: neighbours of a row that a lane has.
    - `apart`: how far from one another those are that are computed at once: 1, or 4 where these
      are the lower and the upper half of a word, which takes fewer instructions.
    """

    value: Any
    loads: tuple[PackedLoad, ...]
    width: int
    apart: int = 1

    def neighbours(self, pair: Any) -> tuple[Any, Any]:
        """Return which neighbours of a run a word has."""
        if self.apart == 1:
            return 2 * pair, 2 * pair + 1
        first = pair // self.apart * 2 * self.apart + pair % self.apart
        return first, first + self.apart


def find_decoded(value: Any, row: ir.Var, k: ir.Var, condition: Any) -> Decoded | None:
    """Plan what a lane loads of a decoder; None if 16 bytes of no tensor are neighbours of a row.

    - `value`: of an element, at `row` and at `k` of a step.
    - `condition` (Expr or None): under which there is one; lanes of a row have it together, and
      each of its terms is about rows or about the depth.
    """
    terms = [] if condition is None else list(ir.conjuncts(condition))
    if any(ir.depends_on(x, [row]) and ir.depends_on(x, [k]) for x in terms):
        return None
    loads: list[ir.TensorLoad] = []
    for x in ir.find_all(value, ir.TensorLoad):
        has_table = bool(ir.find_all(list(x.indices), ir.TensorLoad))
        if not has_table and not any(tvm_ffi.structural_equal(x, y) for y in loads):
            loads.append(x)
    for width in WIDTHS if loads else ():
        found = [_packed(x, k, width) for x in loads]
        sizes = [0 if x is None else x.num_bytes for x in found]
        together = not ir.depends_on(*_in_runs([condition], k, LANES * width)[:2])
        if together and 0 < min(sizes) <= max(sizes) == THREAD_ACCESS_BYTES:
            known = sorted(filter(None, found), key=lambda x: -x.num_bytes)
            return Decoded(value, tuple(known), width, _apart(value, k, width))
    return None


def _apart(value: Any, k: ir.Var, width: int) -> int:
    """Return how far neighbours are apart that are computed at once; nibbles by half words."""
    (moved,), (u,), analyzer = _in_runs([value], k, width)
    for node in ir.find_all(moved, tirx.BitwiseAnd):
        low, high = (Field.of(ir.substitute(node, {u: x}), analyzer) for x in (0, HALF_WORD))
        if low is not None and high is not None and is_apart(low, high, analyzer):
            return HALF_WORD
    return 1


def _in_runs(values: list[Any], k: ir.Var, width: int) -> tuple[list[Any], list[Any], Any]:
    """Return values at `k = width * run + u`, u, and what is known of it."""
    run, u = (ir.Var(x, ir.dtype_of(k)) for x in ("run", "u"))
    analyzer = sym.Analyzer()
    analyzer.bind(u, tvm_ir.Range(0, width))
    moved = [ir.substitute(x, {k: run * width + u}) for x in values if x is not None]
    return [ir.simplify(x, analyzer) for x in moved], [u], analyzer


def _packed(load: ir.TensorLoad, k: ir.Var, width: int) -> PackedLoad | None:
    """Return what a lane loads for `width` neighbours; None if they are no run of a row."""
    (*others, last), (u,), analyzer = _in_runs(list(load.indices), k, width)
    if not ir.depends_on([*others, last], [u]):
        return PackedLoad(load, 1, width)
    start, end = (ir.substitute(last, {u: x}) for x in (0, width - 1))
    count = ir.static_int(ir.simplify(end - start + 1))
    if ir.depends_on(others, [u]) or not count or width % count:
        return None
    found = PackedLoad(load, count, width // count)
    is_row = ir.is_const(ir.simplify(last - start - u // found.run, analyzer), 0)
    is_aligned = divides(count, start) and divides(count, load.source.shape[-1])
    return found if is_row and is_aligned else None


@dataclass(frozen=True)
class RowRun:
    """One run of neighbours of a row: its number among a lane's, and where it is.

    - `at`: returns what the program's variables are at a neighbour.
    - `inside` (Expr or None): whether there is one; `in_rows`: whether its row is one.
    """

    number: Any
    at: Callable[[Any], dict[Any, Any]]
    inside: Any
    in_rows: Any


class DecodedRegisters:
    """Registers of a lane for what it loads of `number` runs, and for one instruction's words."""

    def __init__(self, decoded: Decoded, dtype: str, number: int) -> None:
        self.decoded, self.dtype = decoded, dtype
        self.loaded = [
            ir.new_buffer(
                f"{x.load.source.name}_local", (number * x.count,), ir.dtype_of(x.load), "local", 16
            )
            for x in decoded.loads
        ]
        self.masks = ir.new_buffer("masks", (number,), "uint32", "local")
        self.values = ir.new_buffer("decoded", (2 * WORDS,), dtype, "local", 16)

    def needed(self, has_masks: bool) -> list[ir.Var]:
        """Return what is to be allocated next to `values`."""
        return [*self.loaded, *([self.masks] if has_masks else [])]

    def load(self, run: RowRun, notes: Any) -> ir.Stmt:
        """Load a run, the tensor's first where there is none; `notes` are of the packed load."""

        def one(x: PackedLoad, held: ir.Var, notes: Any) -> ir.Stmt:
            places = [ir.simplify(ir.substitute(y, run.at(0))) for y in x.load.indices]
            if run.inside is not None:
                places = [tirx.Select(run.inside, y, ir.cast_like(0, y)) for y in places]
            v = ir.Var("v", "int32")
            *others, last = places
            loaded = tirx.BufferLoad(x.load.source, [*others, last + v])
            store = ir.BufferStore(held, loaded, [ir.simplify(run.number * x.count) + v])
            block = ir.block_of_store(store, [loaded], notes)
            if x.count == 1:
                return ir.substitute(block, {v: 0})
            return ir.For(v, 0, x.count, ir.ForKind.VECTORIZED, block)

        pairs = enumerate(zip(self.decoded.loads, self.loaded, strict=True))
        loads = [one(*x, {} if i else notes) for i, x in pairs]
        if run.in_rows is not None:  # of rows that are none each element is zero
            bits = (tirx.const(x, "uint32") for x in (0xFFFFFFFF, 0))
            mask = ir.BufferStore(self.masks, tirx.Select(run.in_rows, *bits), [run.number])
            loads.append(ir.block_of_store(mask, [], {}))
        return ir.seq(loads)

    def word(self, words: ir.Var, place: Any, run: RowRun, pair: Any, known: Any) -> ir.Stmt:
        """Compute one word of an instruction, two neighbours of a run.

        - `words`: what `values` is as words; `place`: which of them.
        - `pair`: of the run's; `known`: ranges of the variables in all of these.
        """
        values = []
        for e in self.decoded.neighbours(pair):
            value = self._held(run.number, e, known)
            values.append(in_32_bits(ir.substitute(value, run.at(e)), known))
        first = ir.simplify(run.number * self.decoded.loads[0].count + 2 * pair, known)
        made = HalfPair(self.dtype, known, SharedPair(self.loaded[0], ir.seq(), first))
        joined = made.word(*values)
        if joined is None:
            if run.in_rows is not None:
                zero = tirx.const(0, self.dtype)
                values = [tirx.if_then_else(run.in_rows, x, zero) for x in values]
            places = [ir.simplify(2 * place + e) for e in range(2)]
            return ir.seq([ir.BufferStore(self.values, x, [y]) for x, y in zip(
                values, places, strict=True)])  # fmt: skip
        if run.in_rows is not None:
            mask = tirx.BufferLoad(self.masks, [ir.simplify(run.number, known)])
            joined = tirx.bitwise_and(joined, mask)
        body = ir.seq(made.before, ir.BufferStore(words, joined, [place]))
        return ir.opaque_block("pair", body, alloc_buffers=made.buffers)

    def _held(self, number: Any, neighbour: Any, known: Any) -> Any:
        """Return the value of a neighbour, from registers."""

        def read(node: ir.TensorLoad, mutator: Any) -> Any:
            for x, held in zip(self.decoded.loads, self.loaded, strict=True):
                if tvm_ffi.structural_equal(node, x.load):
                    place = number * x.count + neighbour // x.run
                    return tirx.BufferLoad(held, [ir.simplify(place, known)])
            return mutator.default_mutate(node)

        return ir.mutate(self.decoded.value, [(ir.TensorLoad, read)])
