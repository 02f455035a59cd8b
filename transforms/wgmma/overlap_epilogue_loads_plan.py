"""Find the vectors that an epilogue reads in pairs, and the loop to overlap.

See `overlap_epilogue_loads.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.hold import hold
from tvm_hopper.codegen_patches.ptx import registers, wgmma
from tvm_hopper.facts.dtypes import dtype_bytes

MIN_ITERATIONS = 4  # of fewer the CUDA compiler leaves no loop, and then moves what sets registers
MAX_REGISTERS_PER_THREAD = 232  # any number that a thread may have
RESERVED_REGISTERS = 40  # registers of a thread next to the accumulator and what is widened


@dataclass(frozen=True)
class WideVector:
    """A vector that is held in pairs, and what becomes of it.

    - `pairs`: the registers.
    - `wide`: those of float32 that take their place after the sum.
    - `loaded`: the statement that loads them, before the sum; None if that has to stay there.
    - `names`, `held`: the statements that keep pairs together until they are read: another name for
      the registers, and a loop.
    - `reads`: what is computed from single elements of them, with the element that is read.
    - `factor`: what an element is multiplied with wherever it is read.
    """

    pairs: ir.Var
    wide: ir.Var
    loaded: ir.Stmt | None
    names: tirx.DeclBuffer
    held: ir.For
    reads: dict[Any, ir.TensorLoad]
    factor: float


@dataclass(frozen=True)
class BesidePlan:
    """A loop over products, and the vectors that are widened next to the last of them."""

    loop: ir.For
    vectors: tuple[WideVector, ...]

    @property
    def wait(self) -> int:
        """The number of the statement in the loop that waits for products just issued."""
        place = _place(self.loop)
        assert place is not None
        return place


def plan_epilogue_overlap(kernel: ir.For) -> tuple[BesidePlan, ...]:
    """Find what can be widened, for each loop."""
    found: dict[Any, list[WideVector]] = {}
    for names in ir.find_all(kernel, tirx.DeclBuffer):
        vector = _vector(kernel, names)
        place = _loop_before(kernel, vector) if vector else None
        if vector is not None and place is not None:
            loop, in_front = place
            vector = replace(vector, loaded=_loaded(kernel, vector, in_front))
            found.setdefault(loop, []).append(vector)
    plans = (BesidePlan(loop, tuple(x)) for loop, x in found.items())
    return tuple(x for x in plans if _fits(kernel, x))


def _vector(kernel: ir.For, names: tirx.DeclBuffer) -> WideVector | None:
    pairs = ir.pointer_of(names.data)
    if pairs is None or str(pairs.scope()) != "local" or len(pairs.shape) != 1:
        return None
    size = ir.static_int(pairs.shape[0])
    if dtype_bytes(ir.dtype_of(pairs)) != 2 or not size or size % 2:
        return None
    holds = [x for x in ir.find_all(kernel, ir.For) if _is_hold(x.body, names.buffer)]
    if len(holds) != 1:
        return None
    casts = {
        x: x.value
        for x in ir.find_all(kernel, tirx.Cast, lambda x: ir.dtype_of(x) == "float32")
        if isinstance(x.value, ir.TensorLoad) and x.value.source.same_as(pairs)
    }
    loads = ir.find_all(kernel, ir.TensorLoad, lambda x: x.source.same_as(pairs))
    stores = ir.find_all(kernel, ir.BufferStore, lambda x: x.buffer.same_as(pairs))
    read_as_words = ir.find_all(kernel, ir.TensorLoad, lambda x: x.source.same_as(names.buffer))
    if len(read_as_words) != 1 or len(stores) != 1:
        return None
    if not casts or any(not any(x.same_as(y) for y in casts.values()) for x in loads):
        return None
    wide = ir.new_buffer(f"{pairs.name}_wide", (size,), "float32", "local")
    scaled = _scaled(kernel, casts)
    reads, factor = scaled if scaled is not None else (casts, 1.0)
    return WideVector(pairs, wide, None, names, holds[0], reads, factor)


def _is_hold(body: ir.Stmt, words: ir.Var) -> bool:
    call = body.value if isinstance(body, ir.Evaluate) else None
    if not isinstance(call, ir.Call) or len(call.args) != 1:
        return False
    load = call.args[0]
    is_word = isinstance(load, ir.TensorLoad) and load.source.same_as(words)
    return is_word and bool(tvm_ffi.structural_equal(call, hold(load)))


def _scaled(kernel: ir.For, casts: dict[Any, ir.TensorLoad]) -> tuple[dict[Any, Any], float] | None:
    """Return products with one constant that elements are read in, and nowhere else."""
    products = {}
    for node in ir.find_all(kernel, tirx.Mul):
        for a, b in ((node.a, node.b), (node.b, node.a)):
            read = next((y for x, y in casts.items() if x.same_as(b)), None)
            if isinstance(a, tirx.FloatImm) and read is not None:
                products[node] = (read, float(a.value))
    factors = {x for _, x in products.values()}
    if len(factors) != 1 or len(products) != len(casts):
        return None
    return {node: read for node, (read, _) in products.items()}, factors.pop()


def _loop_before(kernel: ir.For, vector: WideVector) -> tuple[ir.For, list[ir.Stmt]] | None:
    """Return the loop over products that ends before what reads a vector, and what is there.

    That is what is before the loop next to it.
    """
    for block in ir.find_all(kernel, tirx.SeqStmt):
        parts = list(ir.statements(block))
        readers = [i for i, x in enumerate(parts) if ir.uses_node(x, vector.held)]
        if len(readers) != 1 or parts[readers[0]].same_as(vector.held):
            continue
        loops = [x for x in parts[: readers[0]] if isinstance(x, ir.For) and _is_sum(x)]
        if not loops or len(readers) != 1:
            continue
        writes = ir.find_all(loops[-1], ir.BufferStore, lambda x: x.buffer.same_as(vector.pairs))
        inside = all(ir.uses_node(parts[readers[0]], x) for x in vector.reads)
        in_front = parts[: next(i for i, x in enumerate(parts) if x.same_as(loops[-1]))]
        return (loops[-1], in_front) if inside and not writes else None
    return None


def _loaded(kernel: ir.For, vector: WideVector, in_front: list[ir.Stmt]) -> ir.Stmt | None:
    """Return the statement that loads a vector, if it does nothing else and may do so later."""
    stores = ir.find_all(kernel, ir.BufferStore)
    written = [x.buffer for x in stores]
    (store,) = (x for x in stores if x.buffer.same_as(vector.pairs))
    loads = ir.find_all(store, ir.TensorLoad)
    calls = any(str(x.source.scope()) not in ("", "global") for x in loads)
    if calls or any(x.source.same_as(y) for x in loads for y in written):
        return None
    for part in in_front:
        if ir.uses_node(part, store):
            alone = len(ir.find_all(part, ir.BufferStore)) == 1
            return part if alone and not ir.find_all(part, ir.Evaluate) else None
    return None


def _is_sum(loop: ir.For) -> bool:
    """Tell whether each iteration of a loop waits for all products that it issued."""
    turns = ir.static_int(loop.extent)
    if loop.kind != ir.ForKind.SERIAL or turns is None or turns < MIN_ITERATIONS:
        return False
    return _place(loop) is not None


def _place(loop: ir.For) -> int | None:
    """Return the number of the statement in a loop that waits for products just issued."""
    parts = list(ir.statements(loop.body))
    pair = ir.Evaluate(wgmma.commit_group()), ir.Evaluate(wgmma.wait_group(0))
    places = [
        i
        for i in range(1, len(parts))
        if all(
            tvm_ffi.structural_equal(x, y) for x, y in zip(parts[i - 1 : i + 1], pair, strict=True)
        )
    ]
    return places[0] if len(places) == 1 else None


def _fits(kernel: ir.For, plan: BesidePlan) -> bool:
    """Tell whether a thread has the registers, of those that its role is given."""
    setting = registers.setmaxnreg_inc(MAX_REGISTERS_PER_THREAD).op
    given = [
        int(x.args[0])
        for x in ir.find_all(kernel, ir.Call, lambda x: x.op.same_as(setting))
        if tvm_ffi.structural_equal(x, registers.setmaxnreg_inc(int(x.args[0])))
    ]
    name = wgmma.commit_group().op
    products = [x for x in ir.find_all(plan.loop, ir.Call) if x.op.same_as(name)]
    loads = [y for x in products for y in ir.find_all(x, ir.TensorLoad)]
    sums = ir.once([x.source for x in loads if str(x.source.scope()) == "local"])
    needed = sum(int(x.shape[0]) for x in sums) + sum(int(x.wide.shape[0]) for x in plan.vectors)
    return len(given) == 1 and needed + RESERVED_REGISTERS <= given[0]
