"""Find where loads are: the loops and conditions around them, and which are issued together.

Loads of one body form a group at the first load's place. Nothing in between may access a later
load's tile or write its source. One that may not move starts a separate group.

    load(q); for k in range(8): ...; load(p)        one group, before the loop
    load(q); for k in range(8): use(p); load(p)     two: p is still read when q is loaded
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.effects import find_effects, writes
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Processor
from tvm_hopper.facts.async_ops import ASYNC_OPS
from tvm_hopper.requests.keys import (
    ASYNC_OP,
    CHANNEL,
    CONSUMERS,
    PERSISTENT,
    SHARE_LOADS,
    STAGE,
    STREAM,
    TURNS,
)

from .channel import completes_by_group, find_loads, is_load

COUNTED_BY_TILE = (TURNS, STREAM, SHARE_LOADS)  # their iterations are a product of tiles


@dataclass(frozen=True)
class Site:
    """Loads that are issued together, some of the statements `parts` of one body.

    `is_handed_over` tells whether another agent waits for them, by an mbarrier.

    `loops` are the loops around them, the outermost first. `binds` are the variables bound among
    `parts` that they use: loads may run ahead of them, so that they take copies along. Nothing else
    uses those in `spent`.
    """

    loops: tuple[ir.For, ...]
    parts: tuple[ir.Stmt, ...]
    loads: tuple[ir.SBlockRealize, ...]
    binds: tuple[tirx.Bind, ...]
    spent: tuple[tirx.Bind, ...]
    is_handed_over: bool = False

    @property
    def by_group(self) -> bool:
        """Tell loads that complete in groups of those who read them, without a barrier."""
        return not self.is_handed_over and completes_by_group(self.loads[0].block)


@dataclass(frozen=True)
class _Place:
    """The loops and conditions around a body; `depth` counts loops around its last condition."""

    loops: tuple[ir.For, ...] = ()
    condition: Any = None
    depth: int = 0
    is_direct: bool = True  # the body of its innermost loop, or of the one block that this one is

    def inside(self, condition: Any) -> _Place:
        """Return the place under one more condition."""
        return replace(self, condition=condition, depth=len(self.loops))


def find_sites(kernel: Any, threads: ir.KernelThreads, processor: Processor) -> list[Site]:
    """Return the loads among what threads run that have no channel, in groups, in program order."""
    handed_over = hands_over(kernel, processor)
    persistent = any(PERSISTENT in x.annotations for x in ir.find_all(kernel, ir.For))
    place = _Place()
    for branch in ir.find_all(kernel, ir.IfThenElse) if persistent else []:
        if threads.axis is not None and ir.uses_node(branch, threads.axis):
            place = place.inside(branch.condition)
    found = []
    stored = [x.buffer for x in find_effects(threads.body) if x.writes]
    binds_of_all = ir.find_all(threads.body, tirx.Bind)
    for parts, where in _bodies(threads.body, place):
        for loads in _group(parts, _stages(where, parts), handed_over):
            for load in loads:
                _check_place(load, where, threads.var, persistent)
                _check_address(load, threads, stored, binds_of_all)
            binds = _used_binds(parts, loads)
            spent = _spent(parts, loads, binds)
            found.append(Site(where.loops, parts, loads, binds, spent, handed_over))
    _check_tiles(found)
    return sorted(found, key=lambda site: _position(threads.body, site.loads[0]))


def check_sites(kernel: ir.For, processor: Processor) -> None:
    """Refuse loads whose slots could not be counted where they are."""
    for site in find_sites(kernel, ir.threads_of(kernel), processor):
        check_even(kernel, site.loops)


def check_even(kernel: ir.For, loops: tuple[ir.For, ...]) -> None:
    """Refuse iterations of different number: slots are counted through all loops and output tiles.

    The blocks of a persistent kernel take several tiles, so that its axes count as loops. A loop
    over tiles that are not dealt out in another way counts them in a register (ScheduleTiles).
    """
    persistent = ir.find_all(kernel, ir.For, lambda x: PERSISTENT in x.annotations)
    counts = not any(key in x.annotations for x in persistent for key in COUNTED_BY_TILE)
    axes = [loop.loop_var for loop in ir.thread_axes(kernel).values()] if persistent else []
    if counts:
        tile = [loop.loop_var for loop in _tile_axes(kernel)]
        axes = [x for x in axes if not any(x.same_as(y) for y in tile)]
    for n, loop in enumerate(loops):
        varying = [*axes, *(outer.loop_var for outer in loops[:n])]
        extent = written_out(kernel, loop.extent)
        reads = ir.find_all(extent, ir.TensorLoad) if varying else []
        changed = any(writes(kernel, x.source) for x in reads)
        if changed or ir.depends_on(extent, varying):
            raise cannot_lower(
                f"loop {loop.loop_var.name}" + (f", {PERSISTENT}" if axes else ""),
                f"{loop.extent} iterations, which differ from tile to tile",
                "the same number for each output tile",
                "remove persistent" if axes else "pad the loop to its longest",
            )


def written_out(root: Any, value: Any) -> Any:
    """Return an expression with what its variables are bound to below `root`."""
    binds = {x.var: x.value for x in ir.find_all(root, tirx.Bind)}
    while ir.depends_on(value, list(binds)):
        value = ir.substitute(value, binds)
    return value


def _tile_axes(kernel: ir.For) -> list[ir.For]:
    """Return the axes that name an output tile."""
    axes = ir.thread_axes(kernel)
    return [axes[tag] for tag in ("blockIdx.x", "blockIdx.y") if tag in axes]


def hands_over(kernel: Any, processor: Processor) -> bool:
    """Tell whether a producer will make the loads of a kernel, on a processor that can say so.

    A loop around loads requests it by naming its consumers, or where warp groups multiply in it.
    """
    issued = [str(load.block.annotations[ASYNC_OP]) for load in find_loads(kernel)]
    instead = {ASYNC_OPS[op].handed_over or op for op in issued}
    if not instead <= {*processor.async_ops}:
        return False
    loops = ir.find_all(kernel, ir.For, lambda x: x.kind != ir.ForKind.THREAD_BINDING)
    around = [[x for x in loops if ir.uses_node(x.body, load)] for load in find_loads(kernel)]
    return any(wants_roles(each[-1]) for each in around if each)


def wants_roles(loop: ir.For) -> bool:
    """Tell whether a loop around loads is to be split between a producer and consumers."""
    return CONSUMERS in loop.annotations or uses_warp_groups(loop)


def uses_warp_groups(loop: ir.For) -> bool:
    """Tell whether operations that a warp group issues together read what a loop loads."""
    blocks = ir.find_blocks(loop, ASYNC_OP)
    return any(ASYNC_OPS[str(x.annotations[ASYNC_OP])].agent == "warp_group" for x in blocks)


def _position(body: ir.Stmt, load: ir.SBlockRealize) -> int:
    blocks = ir.find_all(body, ir.SBlockRealize)
    return next(n for n, block in enumerate(blocks) if block.same_as(load))


def is_open(part: Any) -> bool:
    """Tell whether a statement is a load without a channel."""
    return is_load(part) and CHANNEL not in part.block.annotations


def _bodies(stmt: ir.Stmt, place: _Place) -> Iterator[tuple[tuple[ir.Stmt, ...], _Place]]:
    """Walk all sequences of statements below one."""
    parts = tuple(ir.statements(stmt))
    yield parts, place
    for part in parts:
        if is_load(part):
            continue
        if isinstance(part, ir.For):
            loops = (*place.loops, part)
            yield from _bodies(part.body, _Place(loops, place.condition, place.depth))
        elif isinstance(part, ir.SBlockRealize):
            within = place if ir.is_const(part.predicate, 1) else place.inside(part.predicate)
            # A loop's body may be one block, which allocates the tiles.
            direct = not place.loops or part.same_as(place.loops[-1].body)
            yield from _bodies(part.block.body, replace(within, is_direct=direct))
        elif isinstance(part, ir.IfThenElse):
            for arm in (part.then_case, part.else_case):
                if arm is not None:
                    yield from _bodies(arm, place.inside(part.condition))
        elif isinstance(part, tirx.AttrStmt):
            yield from _bodies(part.body, replace(place, is_direct=not place.loops))
        elif inside := [x for x in find_loads(part) if is_open(x)]:
            raise cannot_lower(
                f"copy {inside[0].block.name_hint}",
                f"a copy inside of a {type(part).__name__}",
                "serial loops around copies, whose iterations can be counted",
                "make it a serial loop",
            )


def _stages(place: _Place, parts: tuple[ir.Stmt, ...]) -> list[int]:
    """Return the stage of each statement of a body, 0 where it is no pipeline's."""
    stages = list(place.loops[-1].annotations.get(STAGE, [])) if place.loops else []
    return [int(x) for x in stages] if len(stages) == len(parts) else [0] * len(parts)


def _group(
    parts: tuple[ir.Stmt, ...], stages: list[int], handed_over: bool
) -> list[tuple[ir.SBlockRealize, ...]]:
    groups: list[list[ir.SBlockRealize]] = []
    latest: dict[Any, list[ir.SBlockRealize]] = {}  # of each kind
    between: dict[Any, list[ir.Stmt]] = {}  # since the first load of each
    for part, stage in zip(parts, stages, strict=True):
        if not is_open(part):
            for others in between.values():
                others.append(part)
            continue
        kind = kind_of(part, parts, stage, handed_over)
        if kind in latest and not any(_conflicts(other, part) for other in between[kind]):
            latest[kind].append(part)
            continue
        latest[kind], between[kind] = [part], []
        groups.append(latest[kind])
    return [tuple(group) for group in groups]


def kind_of(
    load: ir.SBlockRealize, parts: tuple[ir.Stmt, ...], stage: int, handed_over: bool
) -> tuple[bool, int, bool, int]:
    """Return how a load completes, in which stage, and whether threads alone read its tile.

    Loads of one kind share their slots. Where agents hand slots over, threads give theirs back when
    they have read, next to operations that read others until they are waited for. The last number
    counts what threads compute before the first operation on the tile: operands of a later product
    are awaited there, and not with those of an earlier one.
    """
    tiles = [region.source for region in load.block.writes]
    readers = [x for x in parts if not is_load(x) and any(ir.accesses(x, y) for y in tiles)]
    by_threads = bool(readers) and not any(ir.find_blocks(x, ASYNC_OP) for x in readers)
    operations = any(ir.find_blocks(x, ASYNC_OP) for x in parts if not is_load(x))
    apart = handed_over and by_threads and operations
    before = 0
    if handed_over and readers and ir.find_blocks(readers[0], ASYNC_OP):
        place = next(n for n, x in enumerate(parts) if x.same_as(readers[0]))
        computed = [x for x in parts[:place] if isinstance(x, ir.SBlockRealize) and not is_load(x)]
        before = sum(not ir.find_blocks(x, ASYNC_OP) for x in computed)
    return not handed_over and completes_by_group(load.block), stage, apart, before


def _conflicts(part: ir.Stmt, load: ir.SBlockRealize) -> bool:
    """Tell whether a load may not be made before a statement that is before it."""
    if any(ir.accesses(part, region.source) for region in load.block.writes):
        return True
    sources = [region.source for region in load.block.reads]
    return any(x.writes and x.buffer.same_as(y) for x in find_effects(part) for y in sources)


# -- variables


def _used_binds(
    parts: tuple[ir.Stmt, ...], loads: tuple[ir.SBlockRealize, ...]
) -> tuple[tirx.Bind, ...]:
    used: list[tirx.Bind] = []
    last = max(n for n, part in enumerate(parts) if part.same_as(loads[-1]))
    for part in reversed(parts[:last]):
        users = [*loads, *(bind.value for bind in used)]
        if isinstance(part, tirx.Bind) and any(ir.uses(x, part.var) for x in users):
            used.insert(0, part)
    return tuple(used)


def _spent(
    parts: tuple[ir.Stmt, ...],
    loads: tuple[ir.SBlockRealize, ...],
    binds: tuple[tirx.Bind, ...],
) -> tuple[tirx.Bind, ...]:
    gone: list[Any] = list(loads)
    for bind in reversed(binds):
        kept = [part for part in parts if not any(part.same_as(x) for x in (*gone, bind))]
        if not any(ir.uses(part, bind.var) for part in kept):
            gone.append(bind)
    return tuple(bind for bind in binds if any(bind.same_as(x) for x in gone))


def _check_address(
    load: ir.SBlockRealize, threads: ir.KernelThreads, stored: list[ir.Var], binds: list[tirx.Bind]
) -> None:
    """Refuse addresses that one thread, some iterations earlier, would compute otherwise.

    `stored` and `binds` are what all that threads run writes, and the variables that it binds.
    """
    tiles = [region.source for region in load.block.writes]
    todo: list[Any] = [load.block.body]
    seen: list[tirx.Bind] = []
    while todo:
        node = todo.pop()
        # A thread that makes a part of its own computes the address of that.
        thread = None if completes_by_group(load.block) else threads.var
        bad = [thread.name] if thread is not None and ir.uses(node, thread) else []
        for read in ir.find_all(node, ir.TensorLoad):
            source = read.source
            if any(source.same_as(tile) for tile in tiles):
                continue
            written = any(buffer.same_as(source) for buffer in stored)
            if written or str(source.scope()) != "global":
                bad.append(source.name)
        if bad:
            raise cannot_lower(
                f"copy {load.block.name_hint}",
                f"an address that depends on {bad[0]}",
                "one that any thread may compute ahead of time: from loop variables, and from "
                "memory that the kernel does not write",
                "compute it in a kernel before this one",
            )
        for bind in binds:
            if ir.uses(node, bind.var) and not any(bind.same_as(x) for x in seen):
                seen.append(bind)
                todo.append(bind.value)


# -- refusals


def _check_place(
    load: ir.SBlockRealize, place: _Place, thread: ir.Var | None, is_persistent: bool
) -> None:
    """Refuse a load whose condition would break its iteration count or divide the threads."""
    where = f"copy {load.block.name_hint}"
    if place.condition is not None:
        if place.depth or is_persistent:
            around = (
                f"loop {place.loops[place.depth - 1].loop_var.name}"
                if place.depth
                else f"a persistent kernel ({PERSISTENT})"
            )
            raise cannot_lower(
                where,
                f"the condition {place.condition} around it in {around}",
                "copies that every iteration makes: skipped iterations would be counted",
                "remove the condition around it",
            )
        if thread is not None and ir.uses(place.condition, thread):
            raise cannot_lower(
                where,
                f"the condition {place.condition} around it",
                f"one that does not depend on {thread.name}: one thread copies for all",
                "put the condition around what reads the tile",
            )
    if place.loops and not place.is_direct:
        raise cannot_lower(
            where,
            f"a copy that is no statement of loop {place.loops[-1].loop_var.name} by itself",
            "copies that are statements of the loop, or of the one block in it",
            "move the other statements into the block of the tiles",
        )


def _check_tiles(sites: list[Site]) -> None:
    """Refuse tiles that two loads write: each load has a separate ring."""
    loads = [load for site in sites for load in site.loads]
    tiles = [load.block.writes[0].source for load in loads]
    for n, tile in enumerate(tiles):
        for other in range(n):
            if tiles[other].same_as(tile):
                names = [loads[i].block.name_hint for i in (other, n)]
                raise cannot_lower(
                    f"copies {', '.join(names)}",
                    f"two copies into {tile.name}",
                    "one copy into each tile",
                    "give each copy a separate tile",
                )
