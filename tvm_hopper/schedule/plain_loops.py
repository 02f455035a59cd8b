"""Pipelines without a product: asynchronous copies read by plain thread loops."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.programming_model import WARP_GROUP_THREADS
from tvm_hopper.requests import keys

from .arguments import as_block, check_type
from .products.config import Roles

THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


def has_product(sch: s_tir.Schedule, loop: Any) -> bool:
    """Tell whether a loop holds a product for WGMMA, already requested or still to be.

    A product distributes threads by itself: around it is threadIdx.y at most, inside none.
    """
    node = sch.get(loop)
    if ir.find_blocks(node, keys.WGMMA):
        return True
    inside = list(ir.thread_axes(node.body))
    around = [x.thread_binding for x in _around(sch, loop)]
    around = [str(x.thread_tag) for x in around if x is not None]
    if any(tag in THREADS for tag in inside) or any(tag in THREADS[::2] for tag in around):
        return False
    return any(
        _is_sum(block) and any(ir.is_shared(region.source) for region in block.reads)
        for block in ir.find_all(node, ir.SBlock)
    )


def _is_sum(block: ir.SBlock) -> bool:
    return any(var.iter_type == tirx.IterVar.CommReduce for var in block.iter_vars)


def check_store(sch: s_tir.Schedule, where: str, copy: Any, reduces: bool) -> None:
    """Refuse what is no copy out of shared memory, or one of elements that no thread wrote."""
    node = sch.get(copy)
    reads, writes = (
        [str(x.source.scope()) for x in regions] for regions in (node.reads, node.writes)
    )
    if reduces:
        reads = [scope for scope in reads if scope != "global"]
    if reads != ["shared.dyn"] or writes != ["global"]:
        raise cannot_schedule(
            where,
            f"a read from {reads} and a write to {writes}",
            'a copy from "shared.dyn" to "global", as cache_write leaves it',
        )
    found, written = _stored_and_written(sch, copy)
    if found > written:
        raise cannot_schedule(
            where,
            f"a store of {found} elements, of which threads write {written}",
            "a tile of as many elements as the threads write",
            "split the loops that are bound to threads so that they divide the tile: TVM's "
            "reverse_compute_at ignores their condition",
        )


def _stored_and_written(sch: s_tir.Schedule, copy: Any) -> tuple[int, int]:
    """Count the elements that a copy stores, and those that its one producer writes before it.

    Both in an iteration of the loops around the two of them; zeros where that is not known.
    """
    producers = sch.get_producers(copy)
    if len(producers) != 1:
        return 0, 0
    tile = next(x.source for x in sch.get(copy).reads if ir.is_shared(x.source))
    blocks = [copy, producers[0]]
    nests = [[sch.get(loop) for loop in sch.get_loops(block)] for block in blocks]
    outer = sum(a.same_as(b) for a, b in zip(*nests, strict=False))
    body = sch.mod[sch.func_working_on].body
    counts = []
    for block, nest in zip(blocks, nests, strict=True):
        node = sch.get(block)
        (realize,) = (x for x in ir.find_all(body, ir.SBlockRealize) if x.block.same_as(node))
        region = next(x for x in (*node.reads, *node.writes) if x.source.same_as(tile))
        of_block = prod(ir.static_int(x.extent) or 0 for x in region.region)
        counts.append(of_block * _count_iterations(nest[outer:], realize.predicate))
    target = [ir.static_int(x) for x in sch.get(copy).writes[0].source.shape]
    if None in target or not all(counts):
        return 0, 0
    return min(counts[0], prod(x or 0 for x in target)), counts[1]  # nothing is stored beyond


def _count_iterations(loops: list[ir.For], predicate: Any) -> int:
    """Count iterations of a nest under conditions `i * 128 + j < 16`; 0 if an extent is unknown."""
    extents = {x.loop_var: ir.static_int(x.extent) or 0 for x in loops}
    total = prod(extents.values())
    for term in ir.conjuncts(predicate) if total else ():
        if not isinstance(term, tirx.LT) or ir.static_int(term.b) is None:
            continue
        inside = [x for x in extents if ir.uses(term.a, x)]
        last = ir.simplify(ir.substitute(term.a, {x: extents[x] - 1 for x in inside}))
        count = prod(extents[x] for x in inside)
        if ir.is_const(last, count - 1):  # one number of each iteration, and of no other loop
            total = total // count * min(count, int(term.b))
    return total


def find_loads(node: Any) -> list[ir.SBlock]:
    """Return the blocks that request an asynchronous copy into shared memory."""
    blocks = ir.find_blocks(node, keys.ASYNC_COPY)
    return [block for block in blocks if any(ir.is_shared(x.source) for x in block.writes)]


def count_statements(where: str, loop: ir.For) -> tuple[int, int]:
    """Return how many copies are in a loop and how many statements after them.

    A loop that is pipelined already is a statement, whatever it copies.
    """
    parts = _parts(loop)
    copies = [part for part in parts if find_loads(part) and not _is_pipelined(part)]
    if not copies:
        need = "a copy at this loop, too, next to that of the pipeline in it"
        raise cannot_schedule(where, "copies of a loop inside alone", need)
    for part in copies:
        loads = find_loads(part)
        others = [x for x in ir.find_all(part, ir.SBlock) if x not in loads]
        if others or len(loads) > 1:
            name = (others or loads)[-1].name_hint
            raise cannot_schedule(
                where,
                f"an asynchronous copy in one loop with block {name}",
                "each copy in a loop nest of its own, right inside of the pipelined loop",
                "compute_at the copy at this loop, or pipeline the loop that it stands in, first",
            )
    late = [x for x in parts[: len(copies)] if not any(x.same_as(part) for part in copies)]
    if late:
        names = [block.name_hint for block in ir.find_all(late[0], ir.SBlock)]
        raise cannot_schedule(
            where,
            f"block {names[0]} before a copy" if names else "a statement before a copy",
            "the copies first, and then what reads their tiles",
            "compute_at the copies at this loop before anything else",
        )
    if len(parts) == len(copies):
        need = "copies, and after them what reads their tiles"
        raise cannot_schedule(where, f"{len(copies)} copies alone", need)
    return len(copies), len(parts) - len(copies)


def count_others(loop: ir.For) -> int:
    """Return how many statements of a loop are no copies: products, and what is next to them."""
    return sum(1 for part in _parts(loop) if not find_loads(part))


def stages_of_others(sch: s_tir.Schedule, loop: Any, last: Any, late: Sequence[Any]) -> list[int]:
    """Return the stage of each statement that is no copy: the last one of those that are late."""
    where = f"loop {sch.get(loop).loop_var.name}"
    if not isinstance(last, int) or last < 1:
        need = "a known number of stages, two or more"
        raise cannot_schedule(where, f"late products and a last stage {last}", need)
    blocks = [sch.get(as_block(sch, x)) for x in late]
    parts = [x for x in _parts(sch.get(loop)) if not find_loads(x)]
    are_late = [any(ir.uses_node(part, x) for x in blocks) for part in parts]
    if sum(are_late) != len(blocks) or not any(are_late):
        names = ", ".join(str(x.name_hint) for x in blocks)
        raise cannot_schedule(where, f"late products {names}", "statements of the loop itself")
    return [last if is_late else last - 1 for is_late in are_late]


def check_in_order(where: str, in_order: Any, late: Sequence[Any], roles: Roles | None) -> bool:
    """Return whether consumers take turns in an iteration; refuse it where nothing is late."""
    check_type(where, "in_order", in_order, bool, "a bool")
    if in_order and (not late or roles is None or roles.consumers < 2):
        need = "late products of two consumers or more"
        raise cannot_schedule(where, "in_order=True without them", need)
    return bool(in_order)


def _parts(loop: ir.For) -> list[ir.Stmt]:
    """Return the statements of a loop; a block around several of them is none itself."""
    inner = ir.statements(ir.peel_blocks(loop.body))
    return inner if len(inner) > 1 else ir.statements(loop.body)


def _is_pipelined(part: ir.Stmt) -> bool:
    return bool(ir.find_all(part, ir.For, lambda x: keys.STAGE in x.annotations))


def check_roles(
    where: str, sch: s_tir.Schedule, loop: Any, roles: Roles | None, wgmma_pending: int | None
) -> None:
    """Refuse what only a product takes, and warp groups that are not those of the plain loops."""
    for name, value in (
        ("registers", roles.registers if roles is not None else None),
        ("wgmma_pending", wgmma_pending),
    ):
        if value is not None:
            need = "it next to a product alone (hs.wgmma)"
            raise cannot_schedule(where, f"{name}={value} without a product", need)
    if roles is None:
        return
    extents: dict[str, Any] = {}
    axes = [x for x in _around(sch, loop) if x.kind == ir.ForKind.THREAD_BINDING]
    axes += ir.find_all(sch.get(loop), ir.For, lambda x: x.kind == ir.ForKind.THREAD_BINDING)
    for axis in axes:
        tag = str(axis.thread_binding.thread_tag)
        if tag in THREADS:
            extents[tag] = ir.static_int(axis.extent)
    wanted = roles.consumers * WARP_GROUP_THREADS
    if not extents or None in extents.values() or prod(extents.values()) != wanted:
        found = " x ".join(f"{tag} {extents[tag]}" for tag in sorted(extents))
        raise cannot_schedule(
            where,
            f"consumers={roles.consumers} with {found or 'no loop bound to threadIdx'}",
            f"loops bound to {wanted} threads, {WARP_GROUP_THREADS} for each consumer",
            "split the loops inside by the number of threads and bind one to threadIdx.x",
        )


def _around(sch: s_tir.Schedule, loop: Any) -> list[ir.For]:
    """Return the loops around one, outermost first, through the blocks that are between them."""
    loops = []
    place = sch.get_sref(loop).parent
    while place is not None:
        if isinstance(place.stmt, ir.For):
            loops.append(place.stmt)
        place = place.parent
    return loops[::-1]
