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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches import byte_pairs
from tvm_hopper.codegen_patches.hold import hold_all
from tvm_hopper.facts import wgmma
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS, WORD_BYTES

from .fragment_loops import bounds
from .register_operand_plan import RegisterOperand, RowLoad, words_in
from .shared_pair_loads import SharedPair, load_pair


def emit_operand(operand: RegisterOperand, thread: ir.Var) -> tuple[ir.Stmt, ir.Stmt, list[ir.Var]]:
    """Return what computes the registers at each step, what loads before the loop, and buffers."""
    dtype, store = ir.dtype_of(operand.buffer), operand.realize.block.body
    per_word, depth = WORD_BYTES // dtype_bytes(dtype), wgmma.instruction_k(dtype)
    m, k = int(operand.row.extent), int(operand.depth.extent)
    lane, rows = thread % WARP_GROUP_THREADS, operand.rows

    def at(row: Any, column: Any) -> dict[Any, Any]:
        units = {loop.loop_var: 0 for loop in operand.units}
        return {operand.row.loop_var: row, operand.depth.loop_var: column, **units}

    def word(subtile: Any, step: Any, i: Any) -> ir.Stmt:
        value = _with_rows(
            store.value, rows, subtile * wgmma.ROWS_OF_THREAD + i % wgmma.ROWS_OF_THREAD
        )
        known = bounds({i: wgmma.OPERAND_WORDS})
        row = ir.simplify(wgmma.operand_row(i, lane), known) + subtile * wgmma.INSTRUCTION_M
        column = ir.simplify(wgmma.operand_col(i, lane, per_word), known) + step * depth
        values = [ir.substitute(value, at(row, column + e)) for e in range(per_word)]
        loaded = load_pair(store.value, at, values[0])
        if loaded is not None:
            values = [loaded.in_value(x, e) for e, x in enumerate(values)]
        first = ((subtile * (k // depth) + step) * wgmma.OPERAND_WORDS + i) * per_word
        places = [ir.simplify(first + e) for e in range(per_word)]
        if loaded is None:
            return ir.seq(_set(operand.registers, values, places))
        widened = _widen(loaded, values, dtype)
        body = ir.seq(loaded.load, widened.compute, _set(operand.registers, widened.values, places))
        buffers = [loaded.registers, *widened.buffers]
        return ir.opaque_block("pair", body, alloc_buffers=buffers)

    loops = ir.make_loop("subtile", m // wgmma.INSTRUCTION_M, lambda subtile:
        ir.make_loop("step", k // depth, lambda step:
            ir.make_loop("word", wgmma.OPERAND_WORDS, lambda i:
                word(subtile, step, i), unroll=True), unroll=True), unroll=True)  # fmt: skip
    block = operand.realize.block
    loaded = [x.load.source for x in rows]
    reads = [x for x in block.reads if not any(x.source.same_as(y) for y in loaded)]
    reads += [ir.full_region(x.registers) for x in rows]
    written = [ir.full_region(operand.registers)]
    # `wgmma.fence` names no register: what computes these stays in front of it (C7519)
    words, _ = words_of(operand.registers, k)
    body = ir.seq(loops, words, hold_all(words.buffer))
    computed = ir.opaque_block(block.name_hint, body, reads=reads, writes=written)
    buffers = [operand.registers, *(x.registers for x in rows)]
    return computed, _emit_row_loads(operand, rows, lane), buffers


def _set(registers: ir.Var, values: list[Any], places: list[Any]) -> list[Any]:
    return [ir.BufferStore(registers, x, [y]) for x, y in zip(values, places, strict=True)]


@dataclass(frozen=True)
class Widened:
    """Values of two elements, and what computes a part of both of them at once."""

    values: list[Any]
    compute: Any = None
    buffers: tuple[ir.Var, ...] = ()


def _widen(loaded: SharedPair, values: list[Any], dtype: str) -> Widened:
    """Convert two bytes at once, where the values convert them so; else leave these as they are."""
    source = ir.dtype_of(loaded.registers)
    if not byte_pairs.widens(source, dtype):
        return Widened(values)
    name = loaded.registers.name
    wide = ir.new_buffer(f"{name}_wide", (len(values),), dtype, "local")
    words = ir.new_buffer(f"{name}_words", (1,), "uint32", "local")
    narrow = ir.new_buffer(f"{name}_bytes", (1,), "uint16", "local")

    def read(node: tirx.Cast, mutator: Any) -> Any:
        load = node.value
        is_pair = isinstance(load, ir.TensorLoad) and load.source.same_as(loaded.registers)
        if is_pair and ir.dtype_of(node) == dtype:
            return tirx.BufferLoad(wide, load.indices)
        return mutator.default_mutate(node)

    found = [ir.mutate(x, [(tirx.Cast, read)]) for x in values]
    if not ir.uses(found, wide):
        return Widened(values)
    word = byte_pairs.widen(source, dtype, tirx.BufferLoad(narrow, [0]))
    compute = [
        tirx.DeclBuffer(narrow, data=loaded.registers.data),
        tirx.DeclBuffer(words, data=wide.data),
        ir.BufferStore(words, word, [0]),
    ]
    return Widened(found, compute, (wide,))


def words_of(registers: ir.Var, k: int) -> tuple[ir.Stmt, Callable[[Any, Any], list[Any]]]:
    """Name the registers of `k` columns as words, and return which an instruction takes."""
    words = ir.new_buffer(f"{registers.name}_words", (words_in(registers),), "uint32", "local")
    steps = k // wgmma.instruction_k(ir.dtype_of(registers))

    def at(row: Any, step: Any) -> list[Any]:
        first = (row // wgmma.INSTRUCTION_M * steps + step) * wgmma.OPERAND_WORDS
        places = [ir.simplify(first + i) for i in range(wgmma.OPERAND_WORDS)]
        return [tirx.BufferLoad(words, [x]) for x in places]

    return tirx.DeclBuffer(words, data=registers.data), at


def _emit_row_loads(operand: RegisterOperand, rows: tuple[RowLoad, ...], lane: Any) -> ir.Stmt:
    """Load what the rows of a thread need, two of each 64."""
    if not rows:
        return ir.seq()
    subtiles = int(operand.row.extent) // wgmma.INSTRUCTION_M

    def one(subtile: Any, h: Any) -> ir.Stmt:
        known = bounds({h: wgmma.ROWS_OF_THREAD})
        row = ir.simplify(wgmma.operand_row(h, lane), known) + subtile * wgmma.INSTRUCTION_M
        return ir.seq(
            [
                ir.BufferStore(
                    x.registers,
                    ir.substitute(x.load, {operand.row.loop_var: row}),
                    [subtile * wgmma.ROWS_OF_THREAD + h],
                )
                for x in rows
            ]
        )

    return ir.make_loop("subtile", subtiles, lambda subtile:
        ir.make_loop("h", wgmma.ROWS_OF_THREAD, lambda h:
            one(subtile, h), unroll=True), unroll=True)  # fmt: skip


def _with_rows(value: Any, rows: tuple[RowLoad, ...], place: Any) -> Any:
    def read(node: ir.TensorLoad, mutator: Any) -> Any:
        for x in rows:
            if tvm_ffi.structural_equal(node, x.load):
                return tirx.BufferLoad(x.registers, [place])
        return mutator.default_mutate(node)

    return ir.mutate(value, [(ir.TensorLoad, read)])
