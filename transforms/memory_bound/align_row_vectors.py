"""Cover rows that begin at any element by aligned vectors.

    for v in unroll(8):
        with sblock("load"):
            where(tx * 8 + v < 151)
            tile[v] = X[r, tx * 8 + v]                         float16, rows of 302 bytes
    for v in unroll(8):
        with sblock("sum"):
            where(tx * 8 + v < 151)
            total[0] = total[0] + tile[v]
  ->
    s = r % 8 * 7 % 8                        row r begins s elements after a vector
    if tx * 8 < 151 + s and the vector ends in the tensor:
        for v in vectorized(8): tile[v] = X[r, tx * 8 + v - s]
    else:
        for v in unroll(8):
            tile[v] = X[r, tx * 8 + v - s] if s <= tx * 8 + v < 151 + s else 0
    for v in unroll(8):
        with sblock("sum"):
            where(s <= tx * 8 + v < 151 + s)
            total[0] = total[0] + tile[v]

The lanes of a row move by `s`, so that its vectors begin at multiples of 16 bytes. The first and
the last one also have elements of the rows next to it: they are loaded and not used. A store is a
vector where all lanes are of the row, else each lane stores for itself. Of what all rows share,
where row and vector begin apart, two vectors are loaded and moved by `s` in registers.

Before: lanes access one element each, conditions stand on blocks; the schedule has dealt out as
many lanes as shifted rows need.  After: vectors; no bound of a row that its lanes do not divide.
Not here: which rows are shifted (`schedule/row_reduction/odd_rows.py`).
"""

from __future__ import annotations

from typing import Any

from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import THREAD_ACCESS_BYTES, WORD_BYTES
from tvm_hopper.requests.bodies import is_memory_bound
from tvm_hopper.transforms.common.word_shifts import bind_word, moved_words
from tvm_hopper.transforms.kernel_pass import kernel_step

from .align_row_vectors_plan import LaneAccess, Lanes, OddRows, flat_index, plan_odd_rows


def rewrite_odd_rows(kernel: ir.For, plan: OddRows) -> ir.For:
    """Shift all lanes, and make vectors of accesses to rows."""
    planned = {x.loop: _shift_lanes(x, plan) for x in plan.lanes}
    return _room_for_lanes(ir.replace_nodes(kernel, ir.For, planned))


def _shift_lanes(lanes: Lanes, plan: OddRows) -> ir.Stmt:
    shift, end = plan.shift, plan.columns + plan.shift
    is_vector = lanes.access in (LaneAccess.LOAD, LaneAccess.STORE)
    block = _shifted(lanes, plan.distance if is_vector else shift)
    own = [lanes.column >= shift, lanes.column < end]  # a lane's element is one of the row
    is_met = lanes.at(0) < end  # one lane's is: no row begins a whole vector late
    if lanes.access is LaneAccess.COMPUTE:
        return _lane_loop(lanes, block, [*lanes.rest, is_met])
    inside = [lanes.at(0) >= shift, lanes.at(lanes.size - 1) < end]
    if lanes.access is LaneAccess.OTHER:
        single = _lane_loop(lanes, block, [*lanes.rest, *own])
        if not plan.by_warps:  # each warp has the ends of a row: it would run both branches
            return single
        every = _lane_loop(lanes, block, lanes.rest)
        return ir.IfThenElse(ir.conjunction(inside), every, ir.fresh_variables(single))
    if lanes.access is LaneAccess.STORE:
        single, whole = _lane_loop(lanes, block, [*lanes.rest, *own]), inside
    else:
        store = block.body
        zero = tirx.const(0, ir.dtype_of(store.value))
        value = tirx.if_then_else(ir.conjunction(own), store.value, zero)
        kept = ir.BufferStore(store.buffer, value, list(store.indices))
        single = _lane_loop(lanes, ir.with_block(block, body=kept), lanes.rest)
        whole = [is_met, _fits_tensor(lanes, block)]
    if lanes.access is LaneAccess.LOAD_MOVED:
        return _moved_vector(lanes, plan)
    if not is_vector or not _is_aligned(lanes, block):
        return single
    vector = _lane_loop(lanes, block, lanes.rest, ir.ForKind.VECTORIZED)
    needs_single = lanes.access is LaneAccess.STORE or not ir.is_const(whole[-1], 1)
    rest = ir.fresh_variables(single) if needs_single else None
    return ir.IfThenElse(ir.conjunction(whole), vector, rest)


def _moved_vector(lanes: Lanes, plan: OddRows) -> ir.Stmt:
    """Load the vectors around a lane's elements of what rows share, and move them in registers."""
    size, lane, block = lanes.size, lanes.loop.loop_var, lanes.realize.block
    load, dtype = block.body.value, ir.dtype_of(block.body.value)
    num_bytes = dtype_bytes(dtype)
    count = size * num_bytes // WORD_BYTES
    both = ir.new_buffer("both", (2 * size,), dtype, "local", THREAD_ACCESS_BYTES)
    words = ir.new_buffer("words", (2 * count,), "uint32", "local")

    def loaded(slot: int) -> ir.Stmt:
        """Load a vector; elements one by one where it isn't whole."""
        first = lanes.at(0) if slot else lanes.at(0) - size

        def each(kind: Any) -> ir.Stmt:
            v = ir.Var("v", ir.dtype_of(lane))
            value = ir.substitute(load, {lane: v if slot else v - size})
            if kind != ir.ForKind.VECTORIZED:
                inside = ir.conjunction([first + v >= 0, first + v < plan.columns])
                value = tirx.if_then_else(inside, value, tirx.const(0, dtype))
            store = ir.BufferStore(both, value, [v + size if slot else v])
            loads = ir.find_all(value, ir.TensorLoad)
            return ir.For(v, 0, size, kind, ir.block_of_store(store, loads, {}))

        whole = ir.conjunction([first >= 0, ir.simplify(first + size) <= plan.columns])
        return ir.IfThenElse(whole, each(ir.ForKind.VECTORIZED), each(ir.ForKind.UNROLLED))

    out: list[Any] = [loaded(0), loaded(1), tirx.DeclBuffer(words, data=both.data)]
    old = [bind_word(out, "word", tirx.BufferLoad(words, [i])) for i in range(2 * count)]
    moved = moved_words(old, plan.shift * num_bytes, out, num_bytes == WORD_BYTES)
    out += [ir.BufferStore(words, x, [i]) for i, x in enumerate(moved)]
    v = ir.Var("v", ir.dtype_of(lane))
    indices = [ir.substitute(x, {lane: v}) for x in block.body.indices]
    kept = ir.BufferStore(block.body.buffer, tirx.BufferLoad(both, [v]), indices)
    out.append(ir.For(v, 0, size, ir.ForKind.VECTORIZED, kept))
    regions = {"reads": [load.source], "writes": [block.body.buffer]}
    regions = {name: [ir.full_region(x) for x in some] for name, some in regions.items()}
    vector = ir.opaque_block(block.name_hint, ir.seq(out), **regions, alloc_buffers=[both])
    is_met = ir.conjunction([*lanes.rest, lanes.at(0) < plan.columns + plan.shift])
    return ir.SBlockRealize([], is_met, vector.block)


def _lane_loop(lanes: Lanes, block: ir.SBlock, terms: Any, kind: Any = ir.ForKind.UNROLLED) -> Any:
    body = ir.SBlockRealize([], ir.conjunction(terms), block)
    return ir.For(lanes.loop.loop_var, lanes.loop.min, lanes.loop.extent, kind, body)


def _shifted(lanes: Lanes, shift: Any) -> ir.SBlock:
    """Return a lane's block with the elements moved, but not the registers that hold them."""
    lane = lanes.loop.loop_var
    moved = {lane: lane - ir.cast_like(shift, lane)}

    def load(node: Any, mutator: Any) -> Any:
        return node if str(node.source.scope()) == "local" else mutator.default_mutate(node)

    def store(node: Any, mutator: Any) -> Any:
        if str(node.buffer.scope()) != "local":
            return mutator.default_mutate(node)
        return ir.BufferStore(node.buffer, mutator.mutate(node.value), list(node.indices))

    def region(node: Any, mutator: Any) -> Any:
        return node if str(node.source.scope()) == "local" else mutator.default_mutate(node)

    return ir.mutate(
        lanes.realize.block,
        [
            (ir.TensorLoad, load),
            (ir.BufferStore, store),
            (ir.TensorRegion, region),
            (ir.Var, lambda node, _: moved.get(node, node)),
        ],
    )


def _is_aligned(lanes: Lanes, block: ir.SBlock) -> bool:
    """Tell whether TVM sees that a vector begins at a multiple of its lanes: it prints one then."""
    access = block.body if lanes.access is LaneAccess.STORE else block.body.value
    first = ir.simplify(ir.substitute(flat_index(access), {lanes.loop.loop_var: 0}))
    return ir.is_zero(ir.simplify(first % lanes.size))


def _fits_tensor(lanes: Lanes, block: ir.SBlock) -> Any:
    """Return whether a vector ends where its tensor does, or before; constant if all do."""
    load = block.body.value
    first = ir.substitute(flat_index(load), {lanes.loop.loop_var: 0})
    size: Any = 1
    for extent in load.source.shape:
        size = size * extent
    if ir.is_zero(ir.simplify(size % lanes.size)):
        return tirx.const(True, "bool")
    return ir.simplify(first) + lanes.size <= size


def _room_for_lanes(kernel: ir.For) -> ir.For:
    """Give register arrays room for the vectors of shifted rows, which may be one more."""
    analyzer = sym.Analyzer()
    for loop in ir.find_all(kernel, ir.For):
        analyzer.bind(loop.loop_var, ir.range_of(loop))
    for block in ir.find_all(kernel, ir.SBlock):
        for old in block.alloc_buffers:
            if str(old.scope()) != "local":
                continue
            ends = [1] * len(old.shape)
            found = ir.accesses(block, old)
            if any(isinstance(x, ir.Call) for x in found):
                continue  # words name it, too
            for access in found:
                for axis, index in enumerate(access.indices):
                    most = analyzer.const_int_bound(index).max_value
                    ends[axis] = max(ends[axis], int(most) + 1)
            shape = [max(int(x), y) for x, y in zip(old.shape, ends, strict=True)]
            if shape != [int(x) for x in old.shape]:
                new = ir.new_buffer(old.name, tuple(shape), ir.dtype_of(old), "local", 64)
                kernel = ir.substitute(ir.reallocate(kernel, old, new), {old: new})
    return kernel


align_row_vectors = kernel_step(plan_odd_rows, rewrite_odd_rows, when=is_memory_bound)
