"""`size_classes`: a copy of the product for each size class, chosen by the host.

    for i, j, k: C[i, j] += A[i, k] * B[j, k]                       i below m
    for i, j: D[i, j] = f(C[i, j])
  ->
    if m <= 16:
        with sblock("C_rows_16"):
            for i, j, k: C[i, j] += A[i, k] * B[j, k]               block C_16
            for i, j: D[i, j] = f(C[i, j])                          block D_16
    elif m <= 256:
        ...                                                         C_256, D_256
    else:
        ...                                                         C_4096, D_4096

Each copy is scheduled by itself, as a separate kernel.  No primitive of TVM branches, so that
`hs.matmul` does this on a schedule that begins again: a trace of it replays on
`hs.size_classes(mod, "C", (16, 256, 4096))`, and not on the module as it was.

The branches contain the blocks that `hs.matmul` fuses into the kernel: the product, what casts its
operands, and the blocks after it that are no separate kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.launches import conditions_around, known_at, most
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule import origins, reasons
from tvm_hopper.schedule.arguments import as_block, as_bounds, as_ranges
from tvm_hopper.schedule.trial import as_one_step, twin

from .fuse import fuse_prologue
from .narrow_operands import find_decoder
from .normalize import normalize
from .outputs import find_gather, output_dtypes
from .recognize import Matmul, check_product, find_matmul
from .views import make_views

ONE_KERNEL = "take one kernel: hs.matmul(..., classes=())"


@dataclass(frozen=True)
class RootPart:
    """One statement of a function's root block, and what it touches."""

    stmt: Any
    names: tuple[str, ...]  # of its blocks
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    is_kernel: bool  # a reduction, or bound to threads already

    def touches(self, buffers: Iterable[Any]) -> bool:
        """Tell whether it reads or writes one of some buffers."""
        return _share((*self.reads, *self.writes), buffers)


def size_classes(
    mod: tvm.IRModule | tirx.PrimFunc, block: str, bounds: Sequence[int] | Mapping[int, int]
) -> Any:
    """Copy a product with symbolic rows for each size class, so that each gets a kernel.

    The copies of block C are named C_16, C_256 and so on by their bounds. `hs.matmul` schedules
    each one.

    Parameters
    ----------
    mod : IRModule or PrimFunc
        Plain loops; it is left as it is. Of a module, the one function that has the block.
    block : str
        The multiply-add.
    bounds : sequence of int, or mapping of int to int
        Upper bounds of the classes, ascending; the last copy also serves more rows. Bounds that map
        to the same number share a copy, named by that number.

    Returns
    -------
    mod : IRModule or PrimFunc
        Products are normalized in it, see `hs.normalize`.

    Raises
    ------
    ScheduleError
        There is no such product, its rows are not symbolic, or the bounds do not ascend.
    """
    if not isinstance(mod, (tvm.IRModule, tirx.PrimFunc)):
        raise cannot_schedule("size_classes", f"{type(mod).__name__}", "an IRModule or a PrimFunc")
    if isinstance(bounds, Mapping):
        ranges = as_ranges("size_classes", "bounds", bounds)
    else:
        ranges = {x: x for x in as_bounds("size_classes", "bounds", bounds)}
    plain = normalize(mod, block)
    module = tvm.IRModule({"main": plain}) if isinstance(plain, tirx.PrimFunc) else plain
    name = _function_of(module, block)
    sch = s_tir.Schedule(module)
    sch.work_on(name)
    result = branched(sch, block, ranges).mod
    if isinstance(mod, tirx.PrimFunc):
        return result["main"]
    origins.note(result, mod)
    return result


def _function_of(module: tvm.IRModule, block: str) -> str:
    found = [
        gv.name_hint
        for gv, func in module.functions.items()
        if isinstance(func, tirx.PrimFunc)
        and ir.find_all(func.body, ir.SBlock, lambda x: str(x.name_hint) == block)
    ]
    if len(found) != 1:
        what = f"functions {', '.join(sorted(found))}, which all have it"
        raise cannot_schedule(f"block {block}", what, "one function with a block of that name")
    return found[0]


def branched(sch: s_tir.Schedule, block: Any, ranges: Mapping[int, int]) -> s_tir.Schedule:
    """Return a schedule that begins again, with a copy of a product for each of several classes.

    Ranges are given by their bounds, with the number that their copy is called by.
    """
    found = look_at(sch, block)
    target = sch.func_working_on.name_hint
    func = sch.mod[target]
    new = _branch(func, found.problem.name, check_rows(found), ranges)
    module = tvm.IRModule(sch.mod.functions, attrs=sch.mod.attrs, global_infos=sch.mod.global_infos)
    module.update_func(sch.mod.get_global_var(target), new)
    fresh = s_tir.Schedule(module)
    fresh.work_on(target)
    return fresh


def class_block(name: str, bound: int) -> str:
    """Return the name of the copy of a block in one size class."""
    return f"{name}_{bound}"


@dataclass(frozen=True)
class ProductSite:
    """A product as `hs.matmul` will schedule it, and where it is."""

    problem: Matmul
    is_outermost: bool  # nothing but its loops is around it, and no condition
    most_rows: int | None  # rows that it has at most, where conditions around it say so
    out_dtype: str  # type of what is stored, of several outputs the first
    gathered: int = 0  # columns that a tile holds whole for one output, 0: it takes one element
    is_converted: bool = False  # whether an operand is, on its way


def look_at(sch: s_tir.Schedule, block: Any) -> ProductSite:
    """Recognise a product on a copy of a schedule.

    - raises ScheduleError: the block is no product that can be served.
    """
    copy, same = twin(sch)
    block = as_block(copy, same(block))
    check_product(copy, block)
    node = copy.get(block)
    place = copy.get_sref(block).parent
    while not isinstance(place.stmt, ir.SBlock):
        place = place.parent
    nests = [x for x in ir.statements(place.stmt.body) if isinstance(x, ir.For)]
    is_outermost = place.parent is None and any(ir.uses_node(x, node) for x in nests)
    conditions = conditions_around(copy.mod[copy.func_working_on].body, node)
    need = "a matmul whose operands are tensors, or parts of them"
    with reasons.as_refusal(f"block {node.name_hint}", need):
        with as_one_step():
            fuse_prologue(copy, block)
        make_views(copy, block)
    problem = find_matmul(copy, block)
    with known_at(conditions) as analyzer:
        most_rows = most(problem.m.extent, analyzer) if conditions else None
    out_dtype, *_ = output_dtypes(copy, block)
    gathered = find_gather(copy, block)
    columns = 0 if gathered is None else gathered.columns
    decoders = [x for x in copy.get_producers(block) if find_decoder(copy.get(x)) is not None]
    return ProductSite(problem, is_outermost, most_rows, out_dtype, columns, bool(decoders))


def check_rows(found: ProductSite) -> Any:
    """Return the symbolic number of rows of a product; refuse one that has no classes."""
    problem = found.problem
    where = f"block {problem.name}"
    if isinstance(problem.m.extent, int):
        what = f"size classes of M = {problem.m.extent}"
        raise cannot_schedule(where, what, "a symbolic M", "leave classes and rows out")
    for name, axis in (("N", problem.n), ("K", problem.k)):
        if not isinstance(axis.extent, int):
            what = f"size classes with {name} = {axis.extent}, symbolic"
            raise cannot_schedule(where, what, "static N and K next to a symbolic M", ONE_KERNEL)
    if not found.is_outermost:
        what = "size classes of a product inside of another block"
        raise cannot_schedule(where, what, "a product in the function's own body", ONE_KERNEL)
    return problem.m.extent


def _branch(func: Any, block: str, rows: Any, ranges: Mapping[int, int]) -> tirx.PrimFunc:
    root = func.body.block
    parts = [_part(stmt) for stmt in ir.statements(root.body)]
    product = next(i for i, part in enumerate(parts) if block in part.names)
    group = find_group(parts, product)
    outside = [i for i in range(len(parts)) if i not in group]
    staying = [i for i in group if _is_read_outside(parts, i, group, product)]
    _check_order(parts, group, product, staying)
    own = [b for b in root.alloc_buffers if not any(parts[i].touches([b]) for i in outside)]
    shared = [x for i in staying for x in parts[i].writes if not any(x.same_as(y) for y in own)]
    body: Any = None
    for name, condition in reversed(_conditions(rows, ranges)):
        one = _copy_of([parts[i] for i in sorted(group)], [*own, *shared], block, name)
        body = one if body is None else ir.IfThenElse(condition, one, body)
    kept = [
        body if i == product else part.stmt
        for i, part in enumerate(parts)
        if i == product or i in outside or i in staying
    ]
    buffers = [b for b in root.alloc_buffers if not any(b.same_as(x) for x in own)]
    new = ir.with_block(root, body=ir.seq(*kept), alloc_buffers=buffers)
    return func.with_body(ir.SBlockRealize(func.body.iter_values, func.body.predicate, new))


def _conditions(rows: Any, ranges: Mapping[int, int]) -> list[tuple[int, Any]]:
    """Return the copies in the order of the host's tests, with their conditions.

    The last one has none that matters. Of several ranges the condition says first how far the
    largest one goes: the lowering reads that.
    """

    def number(value: int) -> Any:
        return tirx.IntImm(ir.dtype_of(rows), value)

    starts = dict(zip(ranges, [0, *ranges], strict=False))
    last = ranges[max(ranges)]
    names = [*(x for x in dict.fromkeys(ranges.values()) if x != last), last]
    found = []
    for place, name in enumerate(names):
        own = [bound for bound, x in ranges.items() if x == name]
        terms: list[Any] = []
        for bound in own:
            below = {x for end, x in ranges.items() if end <= starts[bound]}
            if below <= {*names[: place + 1]}:  # fewer rows have a copy already, or this one
                terms = [rows <= number(bound)]
            else:
                terms.append(tirx.And(rows > number(starts[bound]), rows <= number(bound)))
        condition = functools.reduce(tirx.Or, terms)
        if len(terms) > 1:
            condition = tirx.And(rows <= number(own[-1]), condition)
        found.append((name, condition))
    return found


def _part(stmt: Any) -> RootPart:
    blocks = ir.find_all(stmt, ir.SBlock)
    loops = ir.find_all(stmt, ir.For)
    return RootPart(
        stmt,
        tuple(str(x.name_hint) for x in blocks),
        tuple(region.source for x in blocks for region in x.reads),
        tuple(region.source for x in blocks for region in x.writes),
        any(x.init is not None for x in blocks)
        or any(x.kind == ir.ForKind.THREAD_BINDING for x in loops),
    )


def find_group(parts: Sequence[RootPart], product: int) -> frozenset[int]:
    """Return the places of the statements that become one kernel with a product."""
    group = {product}
    while True:  # what reads the product, or what is made of it
        made = [x for i in group for x in parts[i].writes]
        more = {
            i
            for i, part in enumerate(parts)
            if i > product and not part.is_kernel and _share(part.reads, made)
        }
        if more <= group:
            break
        group |= more
    while True:  # what makes their other operands
        read = [x for i in group for x in parts[i].reads]
        more = {
            i
            for i, part in enumerate(parts)
            if i < max(group) and not part.is_kernel and _share(part.writes, read)
        }
        if more <= group:
            return frozenset(group)
        group |= more


def _is_read_outside(
    parts: Sequence[RootPart], i: int, group: frozenset[int], product: int
) -> bool:
    """Tell whether a statement before the product is needed by another one, too."""
    others = [part for j, part in enumerate(parts) if j not in group]
    return i < product and any(_share(part.reads, parts[i].writes) for part in others)


def _check_order(
    parts: Sequence[RootPart], group: frozenset[int], product: int, staying: Sequence[int]
) -> None:
    """Refuse statements that cannot move to the product's place past those in between.

    Some statements also stay where they are: a copy moves and writes tensors of its own.
    """
    for i in sorted(group - {product}):
        low, high = sorted((i, product))
        for j in range(low + 1, high):
            moved, other = parts[i], parts[j]
            meets = moved.touches(other.writes) or (
                i not in staying and _share(other.reads, moved.writes)
            )
            if j in group or not meets:
                continue
            raise cannot_schedule(
                f"block {parts[product].names[0]}",
                f"block {other.names[0]} between it and block {moved.names[0]}, which both touch "
                "a tensor",
                "the blocks of a kernel next to each other",
                f"move {other.names[0]} in front or after it, or {ONE_KERNEL}",
            )


def _copy_of(parts: Sequence[RootPart], buffers: Sequence[Any], block: str, bound: int) -> Any:
    """Build one class: a separate block, whose scope TVM's primitives see alone."""
    regions = {}
    for kind in ("reads", "writes"):
        touched = ir.once([x for part in parts for x in getattr(part, kind)])
        outer = [x for x in touched if not any(x.same_as(b) for b in buffers)]
        regions[kind] = [ir.full_region(x) for x in outer]
    body = ir.seq(*(part.stmt for part in parts))

    def rename(node: ir.SBlock, mutator: Any) -> ir.SBlock:
        node = mutator.default_mutate(node)
        return ir.with_block(node, name_hint=class_block(str(node.name_hint), bound))

    body = ir.mutate(body, [(ir.SBlock, rename)])
    used = [b for b in buffers if ir.uses(body, b)]
    name = class_block(f"{block}_rows", bound)
    return ir.fresh_variables(ir.opaque_block(name, body, alloc_buffers=used, **regions))


def _share(first: Iterable[Any], second: Iterable[Any]) -> bool:
    others = list(second)
    return any(x.same_as(y) for x in first for y in others)
