"""Hold what a mask's tensor says of columns as bits, which a warp loads together.

    for g, h, e in unroll(16, 2, 2):                      column(g, e) = 8 g + 2 (t % 4) + e
        S[...] = select(row(h) <= n && bool(mask[b, j0 * 128 + column(g, e)]), S[...], -inf)
  ->
    for w in unroll(4): bits[w] = ballot(bool(mask[b, j0 * 128 + 32 w + t % 32])) >> 2 (t % 4)
    for g, h, e in unroll(16, 2, 2):
        S[...] = select(row(h) <= n && bits[g / 4] & 1 << (8 g + e) % 32, S[...], -inf)

Rows share these conditions: loads of each element would be 32 of a thread, each waited for by
itself. Part of LowerWgmma.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx.registers import ballot
from tvm_hopper.facts import wgmma
from tvm_hopper.facts.programming_model import THREADS_PER_WARP as LANES


@dataclass(frozen=True)
class ColumnBits:
    """Conditions on columns, and the store that reads their bits.

    - `store`: the statement, in terms of `step`, a column of a thread.
    - `registers`: for each condition its words.
    - `conditions`: in terms of the nest's column.
    - `columns`: how many there are.
    """

    store: ir.BufferStore
    step: ir.Var
    registers: tuple[ir.Var, ...]
    conditions: tuple[Any, ...]
    columns: int

    def set_all(self, lane: Any, at: Callable[[Any], dict[Any, Any]]) -> Any:
        """Compute the bits of all columns; `at` places the loops at one."""

        def word(w: Any) -> ir.Stmt:
            column = w * LANES + lane % LANES
            inside = [column < self.columns] if self.columns % LANES else []
            made = []
            for register, condition in zip(self.registers, self.conditions, strict=True):
                holds = ir.conjunction([*inside, *ir.substitute(condition, at(column))])
                bits = ballot(holds) >> ir.cast_like(wgmma.accumulator_col(0, lane), bits_of(0))
                made.append(ir.BufferStore(register, bits, [w]))
            return ir.seq(made)

        return ir.make_loop("w", -(-self.columns // LANES), word, unroll=True)


def bits_of(number: int) -> Any:
    """Return a word of 32 bits."""
    return tirx.IntImm("uint32", number)


def take_column_bits(
    store: ir.BufferStore, predicate: Any, row: ir.Var, column: ir.Var, columns: int
) -> ColumnBits | None:
    """Find conditions on columns alone that read memory; None if there is none.

    - `predicate`: when the statement runs. A warp reads what some of its elements do not: where
      another condition may keep a read in bounds, its indices are cut.
    """
    step = ir.Var("step", "int32")
    registers: list[ir.Var] = []
    found: list[list[Any]] = []
    around = list(ir.conjuncts(predicate))  # under which an expression is computed

    def bit(terms: list[Any]) -> Any:
        same = (n for n, x in enumerate(found) if tvm_ffi.structural_equal(x, terms))
        number = next(same, len(found))
        if number == len(found):
            found.append(terms)
            words = (-(-columns // LANES),)
            registers.append(ir.new_buffer(f"bits_{number}", words, "uint32", "local"))
        word = tirx.BufferLoad(registers[number], [step // LANES])
        mask = bits_of(1) << ir.cast_like(step % LANES, word)
        return tirx.NE(tirx.bitwise_and(word, mask), bits_of(0))

    def choose(node: Any, mutator: Any) -> Any:
        condition, yes, no = _parts(node)
        if condition is None:
            return mutator.default_mutate(node)
        terms = list(ir.conjuncts(condition))
        own = [x for x in terms if _is_of_column(x, row, column)]
        reads = bool(ir.find_all(own, ir.TensorLoad))
        if reads:
            rest = [x for x in terms if not any(x.same_as(y) for y in own)]
            known = [*(x for x in around if _is_of_column(x, row, column)), *own]
            if len(known) < len(around) + len(terms):
                known = [_in_bounds(x) for x in known]
            condition = ir.conjunction([bit(known), *rest])
        around.extend(terms)
        yes = tvm_ffi.structural_mutate(yes, callbacks)
        del around[len(around) - len(terms) :]
        around.append(tirx.Not(ir.conjunction(terms)))
        no = tvm_ffi.structural_mutate(no, callbacks)
        around.pop()
        is_select = isinstance(node, tirx.Select) or (reads and not _reads_memory([yes, no]))
        return (tirx.Select if is_select else tirx.if_then_else)(condition, yes, no)

    callbacks = [(tirx.Select, choose), (ir.Call, choose)]
    value = tvm_ffi.structural_mutate(store.value, callbacks)
    if not found:
        return None
    new = ir.BufferStore(store.buffer, value, store.indices)
    return ColumnBits(new, step, tuple(registers), tuple(found), columns)


def _is_of_column(term: Any, row: ir.Var, column: ir.Var) -> bool:
    """Tell a condition on the column that reads memory, or nothing."""
    loads = ir.find_all(term, ir.TensorLoad)
    is_read = all(str(x.source.scope()) == "global" for x in loads)
    return is_read and ir.depends_on(term, [column]) and not ir.depends_on(term, [row])


def _reads_memory(values: Any) -> bool:
    """Tell values that a condition may have to guard."""
    return ir.has_any(values, ir.TensorLoad, lambda x: str(x.source.scope()) == "global")


def _in_bounds(term: Any) -> Any:
    """Cut the indices of reads to those of their tensors."""

    def load(node: ir.TensorLoad, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        cut = []
        for x, extent in zip(node.indices, node.source.shape, strict=True):
            last = ir.cast_like(extent, x) - ir.cast_like(1, x)
            cut.append(tirx.max(tirx.min(x, last), ir.cast_like(0, x)))
        return tirx.BufferLoad(node.source, cut)

    return ir.mutate(term, [(ir.TensorLoad, load)])


def _parts(node: Any) -> tuple[Any, Any, Any]:
    """Return the condition and both values of a choice, or three times None."""
    if isinstance(node, tirx.Select):
        return node.condition, node.true_value, node.false_value
    if ir.is_choice(node):
        condition, yes, no = node.args
        return condition, yes, no
    return None, None, None
