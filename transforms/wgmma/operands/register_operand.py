"""Keep the first operand of a product in registers: rows that a statement computes at each step.

    for k in ...:
        for i, kk in grid(64, 64): F[i, kk] = float16(W_shared[w * 64 + i, kk]) * S[m + i]
        with sblock(annotations={"tvm_hopper.wgmma": 1}):
            for i, j, kk in grid(64, 256, 64): acc[i, j] += F[i, kk] * X_shared[j, kk]
  ->
    for h in unroll(2): S_rows[h] = S[m + row(h, t)]
    for k in ...:
        for step, word in unroll(4, 4):
            pair[0:2] = W_shared[w * 64 + row(word, t), step * 16 + col(word, t) + 0:2]
            for e in unroll(2):
                F[step * 8 + word * 2 + e] = float16(pair[e]) * S_rows[word % 2]    both at once
        for step in unroll(4): wgmma.mma_async(acc, F[step * 8 ...], descriptor_x + ..)

Each thread computes the elements that its registers hold (PTX ISA 9.1, 9.7.15.5.1.1), and no other
thread does, so that nothing is exchanged. What a row needs from global memory is loaded before the
loop. Part of LowerWgmma.

Before: the statement stands beside its product.  After: plain registers, which the sync engine
knows as a source of the product: it places the fence behind what fills them, and the wait before
they are filled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.hold import hold_all
from tvm_hopper.facts import wgmma
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS, WORD_BYTES
from tvm_hopper.transforms.common.operand_pairs import HalfPair, in_32_bits
from tvm_hopper.transforms.common.shared_pair_loads import load_pair

from .register_operand_plan import RegisterOperand, RowLoad, words_in


@dataclass(frozen=True)
class EmittedOperand:
    """Statements that compute an operand, and the registers that they need.

    `outside` stands before the loop, `ahead` in front of `computed` in each step: what it loads
    from global memory is on its way while the step waits for its tiles.
    """

    outside: ir.Stmt
    ahead: ir.Stmt | None
    computed: ir.Stmt
    buffers: list[ir.Var]


def emit_operand(operand: RegisterOperand, thread: ir.Var) -> EmittedOperand:
    """Return what computes the registers at each step, and what loads before it."""
    lane = thread % WARP_GROUP_THREADS
    tiles = [x for x in operand.rows if ir.is_shared(x.load.source)]
    others = [x for x in operand.rows if x.in_step and x not in tiles]
    outside = [x for x in operand.rows if not x.in_step]
    buffers = [operand.registers, *(x.registers for x in (*others, *outside))]
    return EmittedOperand(
        _emit_row_loads(operand, outside, lane),
        _emit_ahead(operand, others, lane) if others else None,
        _emit_computed(operand, tiles, lane),
        buffers,
    )


def _emit_ahead(operand: RegisterOperand, loads: list[RowLoad], lane: Any) -> ir.Stmt:
    """Load from global memory what a step changes."""
    block, sources = operand.realize.block, [x.load.source for x in loads]
    return ir.opaque_block(
        f"{block.name_hint}_rows",
        _emit_row_loads(operand, loads, lane),
        reads=_regions(block.reads, sources),
        writes=[ir.full_region(x.registers) for x in loads],
    )


def _emit_computed(operand: RegisterOperand, tiles: list[RowLoad], lane: Any) -> ir.Stmt:
    """Compute the registers, from shared tiles and from what was loaded before."""
    block, held = operand.realize.block, [x for x in operand.rows if x not in tiles]
    gone = _regions(block.reads, [x.load.source for x in held])
    words, _ = words_of(operand.registers, operand.k)
    # `wgmma.fence` names no register: what computes these stays in front of it (C7519)
    body = ir.seq(
        _emit_row_loads(operand, tiles, lane),
        words,
        _emit_words(operand, words.buffer, lane),
        hold_all(words.buffer),
    )
    return ir.opaque_block(
        block.name_hint,
        body,
        reads=[
            *(x for x in block.reads if not any(x.same_as(y) for y in gone)),
            *(ir.full_region(x.registers) for x in held),
        ],
        writes=[ir.full_region(operand.registers)],
        alloc_buffers=[x.registers for x in tiles],
    )


def _regions(regions: Any, sources: list[Any]) -> list[Any]:
    """Return the regions of some tensors."""
    return [x for x in regions if any(x.source.same_as(y) for y in sources)]


def _emit_words(operand: RegisterOperand, words: ir.Var, lane: Any) -> ir.Stmt:
    """Compute the registers of each instruction, a word of two elements after the other."""
    dtype, store = ir.dtype_of(operand.buffer), operand.realize.block.body
    per_word, depth = WORD_BYTES // dtype_bytes(dtype), wgmma.instruction_k(dtype)
    m, k = int(operand.row.extent), int(operand.depth.extent)

    def at(row: Any, column: Any) -> dict[Any, Any]:
        units = {loop.loop_var: 0 for loop in operand.units}
        return {operand.row.loop_var: row, operand.depth.loop_var: column, **units}

    def word(subtile: Any, step: Any, i: Any) -> ir.Stmt:
        place = subtile * wgmma.ROWS_OF_THREAD + i % wgmma.ROWS_OF_THREAD
        value = _with_rows(store.value, operand.rows, place, step)
        known = ir.ranges(
            {subtile: m // wgmma.INSTRUCTION_M, step: k // depth, i: wgmma.OPERAND_WORDS}
        )
        row = ir.simplify(wgmma.operand_row(i, lane), known) + subtile * wgmma.INSTRUCTION_M
        column = ir.simplify(wgmma.operand_col(i, lane, per_word), known) + step * depth
        values = [
            in_32_bits(ir.substitute(value, at(row, column + e)), known) for e in range(per_word)
        ]
        has_choice = bool(ir.find_all(value, ir.Call, ir.is_choice))  # a pair may be out of bounds
        loaded = None if has_choice else load_pair(value, at, values[0])
        if loaded is not None:
            values = [loaded.in_value(x, e) for e, x in enumerate(values)]
        number = ir.simplify((subtile * (k // depth) + step) * wgmma.OPERAND_WORDS + i)
        pair = HalfPair(dtype, known, loaded)
        joined = pair.word(*values)
        if joined is not None:
            stored: Any = [*pair.before, ir.BufferStore(words, joined, [number])]
        else:
            first = number * per_word
            places = [ir.simplify(first + e) for e in range(per_word)]
            stored = _set(operand.registers, values, places)
        buffers = [] if joined is None else pair.buffers
        if loaded is None and not buffers:
            return ir.seq(stored)
        body = ir.seq(loaded.load if loaded else None, stored)
        buffers = [*([loaded.registers] if loaded else []), *buffers]
        return ir.opaque_block("pair", body, alloc_buffers=buffers)

    return ir.make_loop("subtile", m // wgmma.INSTRUCTION_M, lambda subtile:
        ir.make_loop("step", k // depth, lambda step:
            ir.make_loop("word", wgmma.OPERAND_WORDS, lambda i:
                word(subtile, step, i), unroll=True), unroll=True), unroll=True)  # fmt: skip


def _set(registers: ir.Var, values: list[Any], places: list[Any]) -> list[Any]:
    return [ir.BufferStore(registers, x, [y]) for x, y in zip(values, places, strict=True)]


def words_of(registers: ir.Var, k: int) -> tuple[ir.Stmt, Callable[[Any, Any], list[Any]]]:
    """Name the registers of `k` columns as words, and return which an instruction takes."""
    words = ir.new_buffer(f"{registers.name}_words", (words_in(registers),), "uint32", "local")
    steps = k // wgmma.instruction_k(ir.dtype_of(registers))

    def at(row: Any, step: Any) -> list[Any]:
        first = (row // wgmma.INSTRUCTION_M * steps + step) * wgmma.OPERAND_WORDS
        places = [ir.simplify(first + i) for i in range(wgmma.OPERAND_WORDS)]
        return [tirx.BufferLoad(words, [x]) for x in places]

    return tirx.DeclBuffer(words, data=registers.data), at


def _emit_row_loads(operand: RegisterOperand, loads: Sequence[RowLoad], lane: Any) -> ir.Stmt:
    """Load what neighbours of a thread's rows have in common, of two rows of each 64."""
    m = int(operand.row.extent)

    def one(x: RowLoad, subtile: Any, h: Any, group: Any) -> ir.Stmt:
        known = ir.ranges({h: wgmma.ROWS_OF_THREAD})
        row = ir.simplify(wgmma.operand_row(h, lane), known) + subtile * wgmma.INSTRUCTION_M
        values = {operand.row.loop_var: row, operand.depth.loop_var: group * x.run}
        place = (subtile * wgmma.ROWS_OF_THREAD + h) * x.groups + group
        value: Any = x.load
        if x.guard is not None:
            value = tirx.if_then_else(x.guard, value, tirx.const(0, ir.dtype_of(value)))
        return ir.BufferStore(x.registers, ir.substitute(value, values), [ir.simplify(place)])

    def loops(x: RowLoad) -> ir.Stmt:
        return ir.make_loop("subtile", m // wgmma.INSTRUCTION_M, lambda subtile:
            ir.make_loop("h", wgmma.ROWS_OF_THREAD, lambda h:
                ir.make_loop("group", x.groups, lambda group:
                    one(x, subtile, h, group), unroll=True), unroll=True), unroll=True)  # fmt: skip

    return ir.seq([loops(x) for x in loads])


def _with_rows(value: Any, rows: tuple[RowLoad, ...], row: Any, step: Any) -> Any:
    """Read registers where a value loads what neighbours have in common."""

    def read(node: ir.TensorLoad, mutator: Any) -> Any:
        for x in rows:
            if tvm_ffi.structural_equal(node, x.load):
                return tirx.BufferLoad(x.registers, [ir.simplify(x.place(row, step))])
        return mutator.default_mutate(node)

    return ir.mutate(value, [(ir.TensorLoad, read)])
