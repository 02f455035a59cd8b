"""Multiply with mma.sync on fragments that each lane loads from global memory.

    for tx in thread_binding(32, "threadIdx.x"):
        for j, i in grid(8, 16): C[j, i] = 0
        for k0 in ...:
            for j, kk in grid(8, 128): A_local[j, kk] = A[j, k0 + kk]
            for i, kk in grid(16, 128): B_local[i, kk] = B[n + i, k0 + kk]
            with sblock(annotations={"tvm_hopper.mma_sync": 1}):
                for j, i, kk in grid(8, 16, 128): C[j, i] += A_local[j, kk] * B_local[i, kk]
        for j, i in grid(8, 16): sums[j, i] = C[j, i]
  ->
        g, t := tx // 4, tx % 4
        for r in range(4): C[r] = 0                        sums of columns g, g + 8, rows 2t, 2t + 1
        for k0 in ...:
            for c in unroll(4):
                for v in vectorized(8): A_local[c * 8 + v] = A[g, k0 + c * 32 + t * 8 + v]
            for h, c in unroll(2, 4):
                for v in vectorized(8): B_local[..] = B[n + h * 8 + g, k0 + c * 32 + t * 8 + v]
            for c, s in unroll(4, 2): mma.sync(C, B_local words, A_local words)
        for r in unroll(4): sums[2 t + r % 2, g + r // 2 * 8] = C[r]

Sums that go to shared memory are for other warps: a barrier is after them.

Each element goes from memory to the registers of the lane that multiplies it: nothing passes
through shared memory, and nothing is loaded twice (lower_mma_sync_plan.py).

Before: buffers are compact, nests are as the schedule made them.  After: no `mma_sync` block;
operands and sums are registers of a lane.
Not here: what becomes of the vectors (legalize_vectors.py, add_cache_hints.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import fences, mma_sync
from tvm_hopper.requests.keys import ASYNC_COPY
from tvm_hopper.transforms.kernel_pass import kernel_pass

from .decoded_fragments import DecodedRegisters, RowRun
from .fragment_vectors import load_vector, loops
from .lower_mma_sync_plan import (
    COLUMNS,
    ROWS,
    VECTOR,
    FragmentLoad,
    SumNest,
    WarpProduct,
    plan_fragments,
)


class Registers:
    """Registers of a lane for a product."""

    def __init__(self, plan: WarpProduct) -> None:
        self.plan = plan
        self.row, self.group = plan.lane // 4, plan.lane % 4
        rows, depth, columns = plan.places
        first = rows * depth * (2 if plan.along_k else 4)  # vectors
        decoded = plan.first.decoded
        self.decoded = DecodedRegisters(decoded, plan.dtype, first) if decoded else None
        self.first = (
            self.decoded.values if self.decoded else _like(plan.first.buffer, (first * VECTOR,))
        )
        has_masks = _terms(plan.first, True) is not None
        self.loaded = self.decoded.needed(has_masks) if self.decoded else []
        self.second = _like(plan.second.buffer, (columns * depth * plan.width,))
        self.sums = _like(plan.accumulator, (plan.num_sums,))


def _like(buffer: ir.Var, shape: tuple[int, ...]) -> ir.Var:
    return ir.new_buffer(buffer.name, shape, ir.dtype_of(buffer), "local", 16)


def rewrite_fragments(kernel: ir.For, plan: WarpProduct) -> Any:
    """Replace the product, the nests around it, and their registers."""
    held = Registers(plan)
    # next to asynchronous copies InsertSyncs places what the threads need between their accesses
    is_engines = bool(ir.find_blocks(kernel, ASYNC_COPY))
    shared = [] if is_engines else [x for x in plan.sums if _is_handed_on(x)]
    planned = {nest.nest: _sums(plan, held, nest) for nest in plan.sums}
    for nest in shared:
        planned[nest.nest] = ir.seq(planned[nest.nest], fences.sync_threads())
    planned[plan.first.nest] = _load_first(plan, held)
    planned[plan.second.nest] = _load_second(plan, held)
    planned[plan.product.realize] = _multiply(plan, held)
    body = ir.replace_nodes(kernel, ir.Stmt, planned)
    moved = {
        plan.first.buffer: held.first,
        plan.second.buffer: held.second,
        plan.accumulator: held.sums,
    }
    for old, new in moved.items():
        body = ir.reallocate(body, old, new)
    body = ir.move_regions(body, moved)
    body = ir.allocate_in(body, held.loaded) if held.loaded else body
    return _mark(body) if shared else body


def _is_handed_on(nest: SumNest) -> bool:
    """Tell whether other warps read what a nest stores."""
    store = nest.realize.block.body
    return isinstance(store, ir.BufferStore) and ir.is_shared(store.buffer)


def _mark(kernel: ir.For) -> ir.For:
    """Keep stock ThreadSync out, which places no barrier where rows are symbolic."""
    outer = ir.find_all(kernel, ir.SBlock)[0]
    ours = ir.with_block(outer, body=ir.mark_ours(outer.body))
    return ir.replace_nodes(kernel, ir.SBlock, {outer: ours})


def _run(plan: WarpProduct, held: Registers, tile: Any, half: Any, chunk: Any) -> RowRun:
    """Return where neighbours of a row lie that a lane decodes."""
    row = tile * ROWS + half * COLUMNS + held.row
    first = chunk * plan.instruction_depth + held.group * plan.width
    number = (tile * 2 + half) * plan.places[1] + chunk
    load = plan.first

    def at(neighbour: Any) -> dict[Any, Any]:
        return {load.row: row, load.k: first + neighbour}

    here = at(0)
    return RowRun(number, at, _at(load.condition, here), _at(_terms(load, True), here))


def _terms(load: FragmentLoad, of_rows: bool) -> Any:
    """Return the terms of a load's condition about its rows, or the others; None: none."""
    every = [] if load.condition is None else list(ir.conjuncts(load.condition))
    terms = [x for x in every if ir.depends_on(x, [load.row]) == of_rows]
    return ir.conjunction(terms) if terms else None


def _at(condition: Any, values: dict[Any, Any]) -> Any:
    return None if condition is None else ir.simplify(ir.substitute(condition, values))


def _in_depth(plan: WarpProduct, chunk: Any, body: ir.Stmt) -> ir.Stmt:
    """Multiply what is inside of the sum: all lanes of a warp are, or none."""
    load = plan.first
    inside = _at(_terms(load, False), {load.k: chunk * plan.instruction_depth})
    is_always = inside is None or ir.is_const(inside, 1)
    return body if is_always else ir.IfThenElse(inside, body, None)


def _load_first(plan: WarpProduct, held: Registers) -> ir.Stmt:
    rows, depth, _ = plan.places
    if held.decoded is not None:
        load, notes = held.decoded.load, dict(plan.first.block.annotations)
        return loops((rows, 2, depth), lambda *x: load(_run(plan, held, *x), notes))
    if plan.along_k:

        def along_k(tile: Any, half: Any, chunk: Any) -> Any:
            number = (tile * 2 + half) * depth + chunk
            row = tile * ROWS + half * COLUMNS + held.row
            k = chunk * plan.instruction_depth + held.group * VECTOR
            return load_vector(plan, plan.first, held.first, number, (row, k), plan.first.k, VECTOR)

        return loops((rows, 2, depth), along_k)

    def along_rows(tile: Any, chunk: Any, step: Any) -> Any:
        number = (tile * depth + chunk) * 4 + step
        row = tile * plan.instruction_rows + held.row * VECTOR
        k = chunk * plan.instruction_depth + held.group * 4 + step
        return load_vector(plan, plan.first, held.first, number, (row, k), plan.first.row, VECTOR)

    return loops((rows, depth, 4), along_rows)


def _load_second(plan: WarpProduct, held: Registers) -> ir.Stmt:
    _, depth, columns = plan.places

    width = min(plan.width, VECTOR)
    parts = plan.width // width

    def load(tile: Any, chunk: Any, part: Any) -> Any:
        k = chunk * plan.instruction_depth + held.group * plan.width + part * width
        place, number = (tile * COLUMNS + held.row, k), (tile * depth + chunk) * parts + part
        return load_vector(plan, plan.second, held.second, number, place, plan.second.k, width)

    return loops((columns, depth, parts), load)


@dataclass(frozen=True)
class OperandWords:
    """Registers of a product as words: both operands, and four for what an instruction takes."""

    first: ir.Var
    second: ir.Var
    taken: ir.Var

    @staticmethod
    def of(held: Registers) -> OperandWords:
        """Name the registers."""
        a, b = (
            ir.new_buffer(f"{x.name}_words", (int(x.shape[0]) // 2,), "uint32", "local")
            for x in (held.first, held.second)
        )
        return OperandWords(a, b, ir.new_buffer("pairs", (4,), "uint32", "local"))


def _left(
    plan: WarpProduct, held: Registers, words: OperandWords, *place: Any
) -> tuple[Any, list[Any]]:
    """Return what makes the first operand of an instruction, and its words.

    - `place`: tile of rows, chunk of the depth, and step.
    """
    tile, chunk, step = place
    rows, depth, _ = plan.places
    a = words.first
    if held.decoded is not None:
        extents = rows, depth, plan.instructions
        known = ir.ranges(dict(zip(place, extents, strict=True)))
        runs = [_run(plan, held, tile, half, chunk) for half in range(2)]
        made = [
            held.decoded.word(a, 2 * i + half, run, 2 * step + i, known)
            for half, run in enumerate(runs)
            for i in range(2)
        ]
        return made, [tirx.BufferLoad(a, [i]) for i in range(4)]
    if plan.along_k:
        vectors = [((tile * 2 + half) * depth + chunk) * 4 for half in range(2)]
        return [], [tirx.BufferLoad(a, [x + 2 * step + i]) for i in range(2) for x in vectors]
    base = (tile * depth + chunk) * 16 + step
    word = [tirx.BufferLoad(a, [base + 4 * i]) for i in range(4)]
    left = [tirx.BufferLoad(words.taken, [i]) for i in range(4)]
    made = [mma_sync.halves(left[i + x], word[i], word[i + 1], x) for i in (0, 2) for x in (0, 1)]
    return made, left


def _take_apart(words: OperandWords, vector: Any) -> list[Any]:
    """Put neighbours of the second operand together that are four apart, in each eight."""
    word = [tirx.BufferLoad(words.second, [4 * vector + i]) for i in range(4)]
    taken = [tirx.BufferLoad(words.taken, [i]) for i in range(4)]
    made = [mma_sync.halves(taken[i], word[i // 2], word[i // 2 + 2], i % 2) for i in range(4)]
    return [
        *made,
        *(ir.BufferStore(words.second, x, [4 * vector + i]) for i, x in enumerate(taken)),
    ]


def _multiply(plan: WarpProduct, held: Registers) -> Any:
    rows, depth, columns = plan.places
    words = OperandWords.of(held)

    def one(tile: Any, chunk: Any, step: Any) -> Any:
        made, left = _left(plan, held, words, tile, chunk, step)

        def column(number: Any) -> Any:
            if plan.along_k:
                k = (number * depth + chunk) * (plan.width // 2) + 2 * step
                sums = (tile * columns + number) * 4
            else:
                k = (number * depth + chunk) * 2
                sums = ((tile * 4 + step) * columns + number) * 4
            right = [tirx.BufferLoad(words.second, [k + i]) for i in range(2)]
            own = [tirx.BufferLoad(held.sums, [sums + i]) for i in range(4)]
            return mma_sync.mma(plan.dtype, own, left, right)

        return [*made, loops((columns,), column)]

    def inside(tile: Any, chunk: Any) -> ir.Stmt:
        steps = loops((plan.instructions,), lambda step: one(tile, chunk, step))
        return steps if held.decoded is None else _in_depth(plan, chunk, steps)

    decoded = plan.first.decoded
    is_apart = decoded is not None and decoded.apart > 1
    body = ir.seq(
        tirx.DeclBuffer(words.first, data=held.first.data),
        tirx.DeclBuffer(words.second, data=held.second.data),
        loops((int(words.second.shape[0]) // 4,), lambda x: _take_apart(words, x))
        if is_apart
        else None,
        loops((rows, depth), inside),
    )
    block = plan.product.block
    own = [words.taken] if is_apart or not plan.along_k else []
    more = [ir.full_region(x) for x in held.loaded]
    fields = {"reads": [*block.reads, *more], "writes": block.writes, "alloc_buffers": own}
    return ir.opaque_block(block.name_hint, body, **fields)


def _sums(plan: WarpProduct, held: Registers, nest: SumNest) -> ir.Stmt:
    """Deal a nest over the sums out to the lanes that hold them."""
    rows, _, columns = plan.places
    inner = 1 if plan.along_k else 4

    def one(tile: Any, step: Any, column: Any, half: Any, pair: Any) -> Any:
        number = ((tile * inner + step) * columns + column) * 4 + half * 2 + pair
        if plan.along_k:
            row = tile * ROWS + half * COLUMNS + held.row
        else:
            row = tile * plan.instruction_rows + held.row * VECTOR + step * 2 + half
        whole = list(ir.full_region(held.sums).region)
        values = {nest.row: row, nest.column: column * COLUMNS + held.group * 2 + pair}
        own = ir.reindex(
            nest.realize, plan.accumulator, held.sums, lambda _: [number], lambda _: whole
        )
        return ir.substitute(own, values)

    return loops((rows, inner, columns, 2, 2), one)


LowerMmaSync = kernel_pass("LowerMmaSync", plan_fragments, rewrite_fragments)
