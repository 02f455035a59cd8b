"""Load and widen vectors that an epilogue reads while tensor cores compute a tile's last products.

    ahead[0:64] = bias[...]
    for k in serial(64): ...; mma_async(acc, ...); commit_group(); wait_group(0); ...
    hold(ahead)
    for i in unroll(128): f(acc[i], 0.5 * cast(float32, ahead[i']))
  ->
    for k in serial(62): ...; mma_async(acc, ...); commit_group(); wait_group(0); ...
    ahead[0:64] = bias[...]
    ...; mma_async(acc, ...); commit_group(); wait_group(0); ...                            k = 62
    ...; mma_async(acc, ...); commit_group()                                                k = 63
    hold(ahead)
    for i in unroll(64): wide[i] = 0.5 * cast(float32, ahead[i]); hold(wide[i])
    wait_group(0); nothing is moved over this; ...
    for i in unroll(128): f(acc[i], wide[i'])

Taken apart behind the sum they cost an instruction of every eight that gelu takes, and nothing
multiplies meanwhile; nor does it while they are loaded in front of the sum (loads_ahead.py). In
the last turn but one another warp group's products are under way, and a turn is as long as a load.
ptxas puts what widens in between the products: no instruction keeps it from that which does not
serialise them (an exit never taken is C7517, NVRTC 13.0).

Before: waits are placed, slots are handed over.  After: the same values; what is held is wide.
Left alone: loops whose number of turns is not known, or below four, or whose products are still
under way behind their wait; vectors that do not fit beside the accumulator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx.transform import prim_func_pass

from tvm_hopper import ir
from tvm_hopper.codegen_patches.hold import fence_code, hold
from tvm_hopper.codegen_patches.ptx import registers, wgmma
from tvm_hopper.facts.dtypes import dtype_bytes

LEAST_TURNS = 4  # of fewer the CUDA compiler leaves no loop, and then moves what sets registers
MOST = 232  # any number that a thread may have
SPARE = 40  # registers of a thread beside the accumulator and what is widened


@dataclass(frozen=True)
class WideVector:
    """A vector that is held in pairs, and what becomes of it.

    Attributes
    ----------
    pairs
        The registers.
    wide
        Those of float32 that take their place behind the sum.
    loaded
        The statement that loads them, in front of the sum; None if that has to stay there.
    names, held
        The statements that keep pairs together until they are read: another name for the
        registers, and a loop.
    reads
        What is computed from single elements of them, with the element that is read.
    factor
        What an element is multiplied with wherever it is read.
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
    """A loop over products, and the vectors that are widened beside the last of them."""

    loop: ir.For
    vectors: tuple[WideVector, ...]


def plan_beside(kernel: ir.For) -> tuple[BesidePlan, ...]:
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
    casts = {
        x: x.value
        for x in ir.find_all(kernel, tirx.Cast, lambda x: ir.dtype_of(x) == "float32")
        if isinstance(x.value, ir.TensorLoad) and x.value.source.same_as(pairs)
    }
    loads = ir.find_all(kernel, ir.TensorLoad, lambda x: x.source.same_as(pairs))
    stores = ir.find_all(kernel, ir.BufferStore, lambda x: x.buffer.same_as(pairs))
    read_as_words = ir.find_all(kernel, ir.TensorLoad, lambda x: x.source.same_as(names.buffer))
    if len(holds) != 1 or len(read_as_words) != 1 or len(stores) != 1:
        return None
    if not casts or any(not any(x.same_as(y) for y in casts.values()) for x in loads):
        return None
    wide = ir.new_buffer(f"{pairs.name}_wide", (size,), "float32", "local")
    scaled = _scaled(kernel, casts)
    reads, factor = scaled if scaled is not None else (casts, 1.0)
    return WideVector(pairs, wide, None, names, holds[0], reads, factor)


def _is_hold(body: ir.Stmt, words: ir.Var) -> bool:
    call = body.value if isinstance(body, ir.Evaluate) else None
    known = isinstance(call, ir.Call) and len(call.args) == 1
    load = call.args[0] if known else None
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
    """Return the loop over products that ends in front of what reads a vector, and what is there.

    That is what stands in front of the loop beside it.
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
    """Tell whether each turn of a loop waits for all products that it has issued."""
    turns = ir.static_int(loop.extent)
    if loop.kind != ir.ForKind.SERIAL or turns is None or turns < LEAST_TURNS:
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
    setting = registers.setmaxnreg_inc(MOST).op
    given = [
        int(x.args[0])
        for x in ir.find_all(kernel, ir.Call, lambda x: x.op.same_as(setting))
        if tvm_ffi.structural_equal(x, registers.setmaxnreg_inc(int(x.args[0])))
    ]
    name = wgmma.commit_group().op
    products = [x for x in ir.find_all(plan.loop, ir.Call) if x.op.same_as(name)]
    sums = ir.once(
        x.source
        for product in products
        for x in ir.find_all(product, ir.TensorLoad)
        if str(x.source.scope()) == "local"
    )
    needed = sum(int(x.shape[0]) for x in sums) + sum(int(x.wide.shape[0]) for x in plan.vectors)
    return len(given) == 1 and needed + SPARE <= given[0]


def rewrite_beside(kernel: ir.For, plans: tuple[BesidePlan, ...]) -> Any:
    """Give each loop's last turn the work, and its readers the result."""
    loops = {plan.loop: _with_last_turns(plan) for plan in plans}
    vectors = [x for plan in plans for x in plan.vectors]
    moved = [x for vector in vectors for x in (vector.names, vector.held, vector.loaded)]
    gone: dict[Any, Any] = {x: ir.seq() for x in moved if x is not None}
    reads = {
        node: tirx.BufferLoad(vector.wide, [load.indices[0]])
        for vector in vectors
        for node, load in vector.reads.items()
    }

    def expression(node: Any, mutator: Any) -> Any:
        return reads[node] if node in reads else mutator.default_mutate(node)

    def allocate(block: ir.SBlock) -> ir.SBlock:
        more = [x.wide for x in vectors if any(x.pairs.same_as(y) for y in block.alloc_buffers)]
        return ir.with_block(block, alloc_buffers=[*block.alloc_buffers, *more]) if more else block

    kernel = ir.mutate(kernel, [(tirx.Mul, expression), (tirx.Cast, expression)])
    kernel = ir.replace_nodes(kernel, ir.Stmt, gone | loops)
    return ir.replace(ir.drop_empty(kernel), ir.SBlock, allocate)


def _with_last_turns(plan: BesidePlan) -> ir.Stmt:
    """Load what is read in front of the last turn but one, and widen it in the last."""
    loop, turns = plan.loop, int(plan.loop.extent)
    at = _place(loop)
    assert at is not None
    parts = list(ir.statements(loop.body))
    wide = [_widen(x) for x in plan.vectors]
    fence = ir.Evaluate(fence_code())
    last = [*parts[:at], *wide, parts[at], fence, *parts[at + 1 :]]

    def turn(number: int, body: list[ir.Stmt]) -> Any:
        place = {loop.loop_var: tirx.IntImm(ir.dtype_of(loop.loop_var), number)}
        return ir.substitute(ir.fresh_variables(ir.seq(*body)), place)

    return ir.seq(
        ir.with_body(loop, loop.body, extent=turns - 2),
        *(x.loaded for x in plan.vectors),
        turn(turns - 2, parts),
        turn(turns - 1, last),
    )


def _widen(vector: WideVector) -> ir.Stmt:
    def one(i: Any) -> ir.Stmt:
        value = tirx.Cast("float32", tirx.BufferLoad(vector.pairs, [i]))
        if vector.factor != 1:
            value = tirx.const(vector.factor, "float32") * value
        kept = ir.Evaluate(hold(tirx.BufferLoad(vector.wide, [i])))
        return ir.seq(ir.BufferStore(vector.wide, value, [i]), kept)

    def two(i: Any) -> ir.Stmt:
        return ir.seq(one(i * 2), one(i * 2 + 1))

    size = int(vector.pairs.shape[0])
    return ir.seq(vector.names, vector.held, ir.make_loop("i", size // 2, two, unroll=True))


@prim_func_pass(opt_level=0, name="tvm_hopper.BesideProducts")
class BesideProducts:
    """See the module's docstring for the rewrite."""

    def transform_function(self, func, mod, ctx):
        """Widen what one function's kernels hold in pairs."""

        def widen(kernel: ir.For) -> Any:
            plans = plan_beside(kernel)
            if not plans:
                return kernel
            kernel = rewrite_beside(kernel, plans)
            assert not plan_beside(kernel), "BesideProducts left a vector behind"
            return kernel

        return ir.map_kernels(func, widen)
