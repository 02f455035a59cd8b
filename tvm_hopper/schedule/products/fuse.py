"""`fuse_prologue`, `fuse_epilogue`: fuse casts before and elementwise blocks after a product.

    A_cast[i, k] = cast(A[i, k])                      (inlined into the product)
    C[i, j] += A_cast[i, k] * B[j, k]
    S[i, j] = sigmoid(C[i, j])                        (inlined into D)
    D[i, j] = cast(C[i, j] * S[i, j])                 (inlined into the accumulator's store)

Other reductions, and blocks that are bound to threads already, are separate kernels and are
left alone: what the product hands to them, or takes from them, lies in global memory.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel
from tvm.tirx import IndexMap, IterVar

from tvm_hopper import ir
from tvm_hopper.analysis.contraction import CASTS_NEEDED
from tvm_hopper.errors import HopperError, cannot_schedule
from tvm_hopper.facts.dtypes import OPERAND_DTYPES, exact_dtypes
from tvm_hopper.schedule import reasons
from tvm_hopper.schedule.arguments import as_block
from tvm_hopper.schedule.trial import all_or_nothing, as_one_step

from .narrow_operands import find_decoder
from .recognize import loops_around

SEPARATE = "bind the rest to threads first, or keep it in a separate function"


def with_prologue(func: tirx.PrimFunc, block: str) -> s_tir.Schedule | None:
    """Return a schedule of a function whose product has its casts; None where that is refused."""
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    try:
        with as_one_step():
            fuse_prologue(sch, block)
    except HopperError:
        return None
    return sch


@all_or_nothing("elementwise blocks before the matmul", SEPARATE)
def fuse_prologue(sch: s_tir.Schedule, block: Any) -> None:
    """Inline the blocks that only cast or re-index an operand into the product.

    A block that converts an operand from a narrower type stays, with what it reads inlined into it:
    the kernel converts tiles on their way (converted.py).

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    block : SBlockRV or str
        The multiply-add.

    Raises
    ------
    ScheduleError
        An operand is computed by anything more than a cast.
    """
    block = as_block(sch, block)
    while producers := [
        p
        for p in sch.get_producers(block)
        if not (
            is_own_kernel(sch, p)
            or _adds_dimension(sch, p)
            or _parts_operands(sch, p, block)
            or _converts(sch, p, block)
            or _is_filled_by_copy(sch, p)
        )
    ]:
        for producer in producers:
            node = sch.get(producer)
            value = node.body.value if isinstance(node.body, ir.BufferStore) else None
            load = value.value if isinstance(value, tirx.Cast) else value
            found = _more_than_a_cast(value, load)
            if found:
                raise cannot_schedule(
                    f"block {node.name_hint}",
                    f"{found} before the matmul {sch.get(block).name_hint}",
                    f"{' or '.join(OPERAND_DTYPES)} in memory, {CASTS_NEEDED}",
                    _way_to_memory(sch, producer),
                )
            inline_block(sch, sch.compute_inline, producer)
    _turn_decoders(sch, block)


def _turn_decoders(sch: s_tir.Schedule, block: Any) -> None:
    """Let what decoders make have rows along k, however packed tensors lie: no memory has it."""
    node = sch.get(block)
    for maker in sch.get_producers(block):
        made = sch.get(maker).writes[0].source
        if is_own_kernel(sch, maker) or find_decoder(sch.get(maker)) is None:
            continue
        summed = [x.var for x in node.iter_vars if x.iter_type == IterVar.CommReduce]
        loads = [x for x in ir.find_all(node.body, ir.TensorLoad) if x.source.same_as(made)]
        *_, row, last = loads[0].indices
        if ir.depends_on(row, summed) and not ir.depends_on(last, summed):
            turned = IndexMap.from_func(
                lambda *i: [*i[:-2], i[-1], i[-2]], len(made.shape), index_dtype=ir.dtype_of(row)
            )
            sch.transform_layout(maker, ("write", 0), turned)


def _converts(sch: s_tir.Schedule, maker: Any, block: Any) -> bool:
    """Tell a block that converts an operand, once what computes its own inputs is inlined.

    The product alone reads what it makes, and the whole of it.
    """
    made, node = sch.get(maker).writes[0].source, sch.get(block)
    if len(sch.get_consumers(maker)) > 1 or _is_output(sch, maker):
        return False
    domains = {x.var: x.dom.extent for x in node.iter_vars}
    for load in ir.find_all(node.body, ir.TensorLoad, lambda x: x.source.same_as(made)):
        extents = [domains.get(x) if isinstance(x, ir.Var) else None for x in load.indices]
        if any(x is None or str(x) != str(y) for x, y in zip(extents, made.shape, strict=True)):
            return False
    if not _inputs(sch, maker):
        return find_decoder(sch.get(maker)) is not None
    trial = sch.copy()
    _inline_inputs(trial, maker)
    if find_decoder(trial.get(maker)) is None:
        return False
    _inline_inputs(sch, maker)
    return True


def _inputs(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Return the elementwise blocks that compute what a block reads."""
    return [x for x in sch.get_producers(block) if not is_own_kernel(sch, x)]


def _inline_inputs(sch: s_tir.Schedule, block: Any) -> None:
    """Inline all that elementwise blocks compute for a block."""
    while own := _inputs(sch, block):
        for producer in own:
            inline_block(sch, sch.compute_inline, producer)


def _adds_dimension(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell a row of `normalize`, A_row[u, k] = A[k]: inlined, the product would lose u again."""
    node = sch.get(block)
    value = node.body.value if isinstance(node.body, ir.BufferStore) else None
    return isinstance(value, ir.TensorLoad) and any(
        ir.is_const(x.dom.extent, 1) and not ir.depends_on(list(value.indices), [x.var])
        for x in node.iter_vars
    )


def filled_load(value: Any) -> Any:
    """Return the load of `if_then_else(condition, load, 0)`, None for anything else."""
    if not isinstance(value, ir.Call) or not str(value.op.name).endswith("if_then_else"):
        return None
    _, load, fill = value.args
    return load if isinstance(load, ir.TensorLoad) and ir.is_zero(fill) else None


def _is_filled_by_copy(sch: s_tir.Schedule, maker: Any) -> bool:
    """Tell a pad of an operand, which its copy fills in; what re-indexes in front is inlined."""
    node = sch.get(maker)
    value = node.body.value if isinstance(node.body, ir.BufferStore) else None
    if _is_output(sch, maker) or len(sch.get_consumers(maker)) > 1 or filled_load(value) is None:
        return False
    while own := _inputs(sch, maker):
        bodies = [sch.get(x).body for x in own]
        if not all(isinstance(getattr(x, "value", None), ir.TensorLoad) for x in bodies):
            return False
        for producer in own:
            inline_block(sch, sch.compute_inline, producer)
    return True


def _parts_operands(sch: s_tir.Schedule, copy: Any, block: Any) -> bool:
    """Tell the copy of `normalize`: inlined, one tensor would be both operands again."""
    node = sch.get(copy)
    value = node.body.value if isinstance(node.body, ir.BufferStore) else None
    return (
        isinstance(value, ir.TensorLoad)
        and tvm_ffi.structural_equal(list(value.indices), list(node.body.indices))
        and any(x.source.same_as(value.source) for x in sch.get(block).reads)
    )


def _more_than_a_cast(value: Any, load: Any) -> str:
    """Say what a block does to an operand that WGMMA would not; empty if it may be inlined."""
    if not isinstance(load, ir.TensorLoad):
        return "a computation"
    old, new = ir.dtype_of(load), ir.dtype_of(value)
    if old == new or (old in OPERAND_DTYPES and new in exact_dtypes(old)):
        return ""
    return f"a cast of {load.source.name} from {old} to {new}"


def _way_to_memory(sch: s_tir.Schedule, producer: Any) -> str:
    """Say how an operand that is computed first gets into memory, where TMA reads it."""
    for source in sch.get_producers(producer):
        if sch.get(source).init is not None:
            name = sch.get(source).name_hint
            return f"schedule block {name} first, whose store computes it then"
        if not is_own_kernel(sch, source):
            return _way_to_memory(sch, source)
    return SEPARATE


@all_or_nothing("elementwise blocks after the matmul, and one output", SEPARATE)
def fuse_epilogue(sch: s_tir.Schedule, store: Any) -> None:
    """Inline the crop of `pad` and every elementwise block after the product into the store.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    store : SBlockRV
        What `cache_write` of the accumulator returned, already at its loop.

    Raises
    ------
    ScheduleError
        There are several outputs, or a block that is not elementwise.
    """
    _fuse_followers(sch, as_block(sch, store))


def _fuse_followers(sch: s_tir.Schedule, store: Any) -> None:
    while (consumers := followers(sch, store)) and guarded_store(sch, store) is None:
        _check_not_output(sch, store)
        last = [c for c in consumers if len(consumers) == 1 or not followers(sch, c)]
        if len(last) > 1:
            names = ", ".join(sorted(_output_name(sch, c) for c in last))
            where = f"block {sch.get(store).name_hint}"
            raise cannot_schedule(where, f"several outputs ({names})", "one output", SEPARATE)
        for consumer in consumers:
            check_one_use(sch, store, consumer)
            fuse_side_inputs(sch, consumer, store)
            # a diamond: all but the last are recomputed inside it, since reverse_compute_inline of
            # one of several consumers leaves the others reading a buffer that is gone
            if consumer not in last:
                _check_not_output(sch, consumer)
                inline_block(sch, sch.compute_inline, consumer)
        if len(consumers) == 1:
            if _leaves_out_an_axis(sch.get(consumers[0])):
                _fuse_followers(sch, consumers[0])
            hide_own_output(sch, consumers[0])
            _check_bounds(sch, store, consumers[0])
            inline_block(sch, sch.reverse_compute_inline, consumers[0])


def guarded_store(sch: s_tir.Schedule, block: Any) -> Any:
    """Return the one block that stores some of what a block writes, under a condition; or None."""
    readers = followers(sch, block)
    if len(readers) == 1 and isinstance(sch.get(readers[0]).body, ir.IfThenElse):
        return readers[0]
    return None


def _leaves_out_an_axis(node: Any) -> bool:
    """Tell C[i, j] = S[i, u, j] of one u: behind C, TVM does not know that u < 1."""
    at = list(getattr(node.body, "indices", ()))
    return not all(ir.depends_on(at, [x.var]) for x in node.iter_vars)


def _check_bounds(sch: s_tir.Schedule, store: Any, consumer: Any) -> None:
    """Refuse another index after a padded product where the bounds of its columns would be lost.

    `reverse_compute_inline` replaces the store's predicate by the bounds of the consumer's own
    axes. Tried on a copy: each old bound must follow from the new ones.
    """
    before = _bounds(sch, store)
    if not before:
        return
    name = str(sch.get(consumer).name_hint)
    trial = sch.copy()
    inline_block(trial, trial.reverse_compute_inline, consumer)
    loops = [trial.get(x) for x in trial.get_loops(store)]
    after = [*_bounds(trial, store), *(x.loop_var < x.extent for x in loops)]
    whole = [_multiplied(x) for x in after]
    analyzer = sym.Analyzer()
    for bound in before:
        multiplied = _multiplied(bound)
        known = any(tvm_ffi.structural_equal(multiplied, x) for x in whole)
        if known:
            continue
        with contextlib.ExitStack() as scopes:
            for x in after:
                scopes.enter_context(analyzer.constraint_scope(x))
            if not analyzer.can_prove(bound):
                raise cannot_schedule(
                    f"block {name}",
                    f"another index of a product with padded tiles, by which {bound} is lost",
                    "the product's own rows and columns, or a tile that divides it",
                    "choose a tile that divides the product, or make the block a separate kernel",
                )


def _multiplied(bound: Any) -> Any:
    """Return a // b < c as a < c * b: of a symbolic b TVM does not see that they are the same."""
    while isinstance(bound, tirx.LT) and isinstance(bound.a, tirx.FloorDiv):
        bound = tirx.LT(bound.a.a, bound.b * bound.a.b)
    if not isinstance(bound, tirx.LT):
        return bound
    return tirx.LT(ir.simplify(bound.a), ir.simplify(bound.b))


def _bounds(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Return the terms of the predicate under which a block runs, in terms of its loops."""
    node, root = sch.get(block), sch.get_sref(block)
    while root.parent is not None:
        root = root.parent
    realizes = ir.find_all(root.stmt, ir.SBlockRealize, lambda x: x.block.same_as(node))
    return [ir.simplify(x) for realize in realizes for x in ir.conjuncts(realize.predicate)]


def followers(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Return the blocks that read what a block writes and are not separate kernels."""
    return [c for c in sch.get_consumers(block) if not is_own_kernel(sch, c)]


def is_needed(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether what a block writes is needed in memory: an argument, or read by a kernel."""
    return _is_output(sch, block) or len(followers(sch, block)) < len(sch.get_consumers(block))


def _is_output(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether a block writes an argument of the function."""
    result = sch.get(block).writes[0].source
    own: list[Any] = []
    place = sch.get_sref(block).parent
    while place is not None:
        own += place.stmt.alloc_buffers if isinstance(place.stmt, ir.SBlock) else []
        place = place.parent
    return not any(b.same_as(result) for b in own)


def _check_not_output(sch: s_tir.Schedule, block: Any) -> None:
    """Refuse a value that the epilogue reads on and that is needed in memory all the same."""
    if is_needed(sch, block):
        where = f"block {sch.get(block).name_hint}"
        result = sch.get(block).writes[0].source
        found = f"several outputs ({result.name} is one, and the blocks after it read it)"
        raise cannot_schedule(where, found, "one output", SEPARATE)


def check_one_use(sch: s_tir.Schedule, producer: Any, consumer: Any) -> None:
    """Refuse a block that reads an element of the product for several of its own, or several.

    TVM's `reverse_compute_inline` takes such an index for its inverse and drops elements:
    D[i, j] = C[i, j // 2] would be stored for even j alone.
    """
    product = sch.get(producer).writes[0].source
    node = sch.get(consumer)
    axes = {x.var: x.dom for x in node.iter_vars}
    loads = ir.find_all(node.body, ir.TensorLoad, lambda x: x.source.same_as(product))
    for load in loads:
        exact = sym.detect_iter_map(list(load.indices), axes, True, IterMapLevel.Bijective)
        if len(exact.indices) != len(load.indices) or any(map(wraps, load.indices)):
            raise cannot_schedule(
                f"block {node.name_hint}",
                f"a read of {product.name}{list(load.indices)}, by which elements of the product "
                "are used more than once, or in no order that can be inverted",
                "each element of the product for one element of the output",
                "make the block a separate kernel: bind its loops to threads",
            )
        if _is_guarded(node.body, load) and not _is_inside(load, axes):
            raise cannot_schedule(
                f"block {node.name_hint}",
                f"a read of {product.name}{list(load.indices)} under a condition, which keeps it "
                "inside of the product",
                "as many elements of the output as the product has",
                "make the block a separate kernel: bind its loops to threads",
            )
        if not tvm_ffi.structural_equal(load.indices, loads[0].indices):
            raise cannot_schedule(
                f"block {node.name_hint}",
                f"reads of {product.name}{list(loads[0].indices)} and "
                f"{product.name}{list(load.indices)}",
                "one element of the product for each element of the output",
                "make the block a separate kernel: bind its loops to threads",
            )


def _is_guarded(body: Any, load: Any) -> bool:
    """Tell whether an element is read in some places only."""
    branches = [*ir.find_all(body, tirx.Select), *ir.find_all(body, ir.IfThenElse)]
    branches += ir.find_all(
        body, ir.Call, lambda x: str(getattr(x.op, "name", "")).endswith("if_then_else")
    )
    return any(ir.uses_node(branch, load) for branch in branches)


def _is_inside(load: Any, axes: dict[Any, Any]) -> bool:
    """Tell whether an index lies inside of its tensor wherever the block runs."""
    analyzer = sym.Analyzer()
    for var, domain in axes.items():
        analyzer.bind(var, domain)
    return all(
        analyzer.can_prove(index < ir.cast_like(extent, index))
        for index, extent in zip(load.indices, load.source.shape, strict=True)
    )


def wraps(index: Any) -> bool:
    """Tell an index that begins again in the middle, (i + 8) % 40: TVM inverts it without the +."""
    divided = [x.a for kind in (tirx.FloorMod, tirx.FloorDiv) for x in ir.find_all(index, kind)]
    return any(
        not ir.is_const(ir.simplify(ir.substitute(x, {v: 0 for v in ir.find_all(x, ir.Var)})), 0)
        for x in divided
    )


def hide_own_output(sch: s_tir.Schedule, block: Any) -> None:
    """Let an update in place, D[i, j] = D[i, j] + C[i, j], be inlined as a store is.

    TVM takes a block that reads what it writes for no elementwise one. Here the element is read
    right before it is written, by the same thread.
    """
    node = sch.get(block)
    store = node.body
    own = [i for i, r in enumerate(node.reads) if r.source.same_as(node.writes[0].source)]
    if not own or not isinstance(store, ir.BufferStore):
        return
    for load in ir.find_all(store.value, ir.TensorLoad, lambda x: x.source.same_as(store.buffer)):
        if not tvm_ffi.structural_equal(load.indices, store.indices):
            raise cannot_schedule(
                f"block {node.name_hint}",
                f"a read of {store.buffer.name}{list(load.indices)} in a store to "
                f"{store.buffer.name}{list(store.indices)}",
                "the element that is stored, or another tensor",
                "write the result into a separate tensor",
            )
    sch.unsafe_hide_buffer_access(block, "read", own)


def fuse_side_inputs(sch: s_tir.Schedule, consumer: Any, store: Any) -> None:
    """Inline what computes another input of an epilogue block, e.g. the cast of a bias."""
    product = sch.get(store).writes[0].source
    while True:
        own = [
            p
            for p in sch.get_producers(consumer)
            if not any(r.source.same_as(product) for r in sch.get(p).writes)
            and not is_own_kernel(sch, p)
            and not _reads(sch.get(p), product)
        ]
        if not own:
            return
        for producer in own:
            inline_block(sch, sch.compute_inline, producer)


# -- what the steps share -------------------------------------------------------------------------


def is_own_kernel(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether a block is a separate kernel: a reduction, or bound to threads already.

    So is a block with kernels in it, as each size class of another product is.
    """
    node = sch.get(block)
    loops = [*loops_around(sch, block), *ir.find_all(node.body, ir.For)]
    return node.init is not None or any(x.kind == ir.ForKind.THREAD_BINDING for x in loops)


def _reads(node: Any, buffer: Any) -> bool:
    return any(region.source.same_as(buffer) for region in node.reads)


def _output_name(sch: s_tir.Schedule, block: Any) -> str:
    return str(sch.get(block).writes[0].source.name)


def inline_block(sch: s_tir.Schedule, primitive: Any, block: Any) -> None:
    """Inline one block, and say which one it was when TVM refuses."""
    node = sch.get(block)
    name, formula = node.name_hint, reasons.formula_of(node)
    try:
        primitive(block)
    except reasons.TVM_ERRORS as error:
        written = [x.source for x in node.writes]
        if any(x.source.same_as(y) for x in node.reads for y in written):
            raise cannot_schedule(
                f"block {name}",
                f"an update of {written[0].name} in place, whose result another block reads",
                "an update as the last of the blocks after the matmul",
                "write the result to a separate tensor",
            ) from error
        raise cannot_schedule(
            f"block {name}",
            f"{formula}, which TVM cannot inline{reasons.in_words(error)}",
            "elementwise blocks around the matmul, and one output",
            SEPARATE,
        ) from error
