"""Plan the store rings: tiles that threads write and asynchronous stores read.

    for k in serial(8):
        with sblock("iteration"):
            tile = alloc(shared)
            for t: tile[...] = ...
            with sblock(async_op="tma_store", store_slots=2): tma_store(&tile, ...)

A tile lives as often as the block that allocates it is executed: here once an iteration, and again
for each output tile of a persistent kernel. With n slots, iteration t uses slot t % n, so that the
stores of n - 1 iterations may be in flight while the next slot is written. The number is counted by
the loops around the block, so that a life may be skipped; an iteration of an outer loop may not.

A tile that is loaded and stored has the slots of its loads (`stores_in_flight`): of n slots, one is
in use, some are read by stores, and the loads run as many iterations ahead as there are slots left.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.arch import Processor
from tvm_hopper.requests.keys import PERSISTENT, STAGE, STORE_RING, STORE_SLOTS
from tvm_hopper.transforms.common.channel import find_loads, is_store
from tvm_hopper.transforms.common.shared_memory_size import SharedArray, SharedMemory, shared_array
from tvm_hopper.transforms.common.stage_annotations import parts_of, read_stages


@dataclass(frozen=True)
class StoreRing:
    """A tile that is stored from, and its ring of slots.

    - `number`: of the ring, counted on from those of channels.
    - `tile`: what threads write, and what asynchronous operations read.
    - `stores`: the blocks of these operations.
    - `loops`: the loops around the block that allocates the tile, the outermost first.
    - `num_slots`: more than one.
    """

    number: int
    tile: ir.Var
    stores: tuple[ir.SBlockRealize, ...]
    loops: tuple[ir.For, ...]
    num_slots: int

    @property
    def slot(self) -> SharedArray:
        """Bytes of one slot."""
        return shared_array(self.tile)


def plan_store_rings(kernel: Any, body: ir.Stmt, first_number: int) -> tuple[StoreRing, ...]:
    """Plan the stores of a kernel that have no slots yet; reasons to refuse are raised here."""
    rings: list[StoreRing] = []
    for tile in _stored_tiles(body):
        if any(ir.uses(load, tile) for load in find_loads(body)):
            continue  # it has the slots of its loads
        stores = stores_from(body, tile)
        loops = _loops_around(body, tile)
        num_slots = _num_slots(body, tile, stores, loops)
        if num_slots == 1:
            continue
        _check_counted(kernel, body, tile, stores[0], loops)
        rings.append(StoreRing(first_number + len(rings), tile, stores, loops, num_slots))
    return tuple(rings)


def check_memory(
    rings: tuple[StoreRing, ...], beside: tuple[tuple[SharedArray, ...], ...], processor: Processor
) -> None:
    """Refuse rings that do not fit next to the slots of any one ring of loads."""
    own = [
        SharedArray(x.slot.name, x.num_slots * x.slot.num_bytes, x.slot.alignment) for x in rings
    ]
    for loads in beside or ((),):
        memory = SharedMemory((*own, *loads))
        if rings and not memory.fits_on(processor):
            sizes = [f"{x.slot.name} {x.num_slots} x {x.slot.num_bytes}" for x in rings]
            sizes += [f"{x.name} {x.num_bytes}" for x in loads]
            padding = f" + alignment {memory.padding}" if memory.padding else ""
            raise cannot_lower(
                f"store {rings[0].stores[0].block.name_hint}",
                f"{' + '.join(sizes)}{padding} = {memory.num_bytes} bytes of shared memory",
                f"at most {processor.tile_bytes}",
                "take fewer slots, fewer stages, or a smaller tile",
            )


def stores_in_flight(
    body: ir.Stmt,
    tiles: tuple[ir.Var, ...],
    loops: tuple[ir.For, ...],
    is_persistent: bool,
    num_slots: int,
) -> int:
    """Return in how many slots of a ring of loads stores may be under way while one is filled.

    One, if the ring has three slots or more and uses any of them again: without it a load would
    wait for the store that was issued right before it.
    """
    stores = [store for tile in tiles for store in stores_from(body, tile)]
    asked = _asked(stores)
    if asked is not None:
        if asked > num_slots:
            raise cannot_lower(
                f"store {stores[0].block.name_hint}",
                f"{STORE_SLOTS} = {asked} of a tile that loads fill in {num_slots} slots",
                f"at most {num_slots}: stores read the slots of the loads",
                "take more stages or fewer slots",
            )
        return asked - 1
    trips = [ir.static_int(loop.extent) for loop in loops]
    known = [x for x in trips if x is not None]
    again = is_persistent or len(known) < len(trips) or prod(known) > num_slots
    return 1 if stores and num_slots > 2 and again else 0


def stores_from(body: ir.Stmt, tile: ir.Var) -> tuple[ir.SBlockRealize, ...]:
    """Return the asynchronous stores of a kernel that read a tile, in order."""
    stores = ir.find_all(body, ir.SBlockRealize, is_store)
    return tuple(x for x in stores if any(y.source.same_as(tile) for y in x.block.reads))


def _stored_tiles(body: ir.Stmt) -> list[ir.Var]:
    found: list[ir.Var] = []
    for store in ir.find_all(body, ir.SBlockRealize, is_store):
        if STORE_RING in store.block.annotations:
            continue
        for region in store.block.reads:
            if ir.is_shared(region.source) and not any(region.source.same_as(x) for x in found):
                found.append(region.source)
    return found


# -- how many slots


def _num_slots(
    body: ir.Stmt,
    tile: ir.Var,
    stores: tuple[ir.SBlockRealize, ...],
    loops: tuple[ir.For, ...],
) -> int:
    """Read the number of slots off the stores, and off TVM's stages of the loop they are in."""
    asked, staged = _asked(stores), 1
    for loop in ir.find_all(body, ir.For, lambda x: STAGE in x.annotations):
        parts = parts_of(loop)
        if not any(part.same_as(x) for part in parts for x in stores):
            continue
        stages = read_stages(loop, parts)
        late = max(stages.slots_of_store(x, tile) for x in stores)
        if late > 1 and not (loops and loop.same_as(loops[-1])):
            raise cannot_lower(
                stages.where,
                f"{STAGE} = {list(stages.stages)}, which gives slots to {tile.name}, allocated "
                "around it",
                "a tile that is allocated, written and stored in each iteration",
                f"compute_at what writes it at {loop.loop_var.name}, or store in the same stage",
            )
        if late > 1 and asked not in (None, late):
            raise cannot_lower(
                stages.where,
                f"{STAGE} = {list(stages.stages)}, {late} slots of {tile.name}, beside "
                f"{STORE_SLOTS} = {asked}",
                "one number of slots",
                "remove one of them",
            )
        staged = max(staged, late)
    return max(asked or 1, staged)


def _asked(stores: Any) -> int | None:
    """Return what the blocks of stores from one tile request."""
    asked = [x for x in stores if STORE_SLOTS in x.block.annotations]
    numbers = [int(x.block.annotations[STORE_SLOTS]) for x in asked]
    if len(set(numbers)) > 1:
        raise cannot_lower(
            f"stores {', '.join(x.block.name_hint for x in asked)}",
            f"{STORE_SLOTS} = {' and '.join(map(str, numbers))} for one tile",
            "one number of slots",
            "write it on one of them alone",
        )
    return numbers[0] if numbers else None


# -- what is counted


def _loops_around(body: ir.Stmt, tile: ir.Var) -> tuple[ir.For, ...]:
    """Return the loops around the block that allocates a tile."""
    homes = ir.find_all(
        body, ir.SBlockRealize, lambda x: any(y.same_as(tile) for y in x.block.alloc_buffers)
    )
    if not homes:  # allocated around all threads
        return ()
    return tuple(ir.find_all(body, ir.For, lambda x: ir.uses_node(x.body, homes[0])))


def _check_counted(
    kernel: Any,
    body: ir.Stmt,
    tile: ir.Var,
    store: ir.SBlockRealize,
    loops: tuple[ir.For, ...],
) -> None:
    """Refuse lives whose number is not that of an iteration, or of which there is one alone."""
    where = f"store {store.block.name_hint}"
    persistent = ir.has_any(kernel, ir.For, lambda x: PERSISTENT in x.annotations)
    if not loops and not persistent:
        raise cannot_lower(
            where,
            f"several slots of {tile.name}, which a thread block allocates once",
            "a tile that is allocated, written and stored in each iteration of a serial loop, or "
            f"output tiles that thread blocks share ({PERSISTENT})",
            "compute_at what writes it at a loop, or remove the slots",
        )
    for loop in loops:
        if loop.kind not in (ir.ForKind.SERIAL, ir.ForKind.UNROLLED):
            raise cannot_lower(
                f"{where}, loop {loop.loop_var.name}",
                f"a loop of kind {ir.ForKind(loop.kind).name.lower()} around several slots of "
                f"{tile.name}",
                "a serial loop",
            )
    inside = loops[-1] if loops else body
    conditions = ir.find_all(kernel, ir.IfThenElse)
    conditions += ir.find_all(kernel, ir.SBlockRealize, lambda x: not ir.is_const(x.predicate, 1))
    for condition in conditions:
        around = [x for x in loops if ir.uses_node(x.body, condition)]
        if ir.uses_node(condition, inside) and (around or persistent):
            what = (
                condition.condition
                if isinstance(condition, ir.IfThenElse)
                else (condition.predicate)
            )
            raise cannot_lower(
                where,
                f"the condition {what} around {inside.loop_var.name}, which counts the slots of "
                f"{tile.name}",
                "loops that every iteration around them makes: skipped iterations would be counted",
                "put the condition inside of the loop",
            )
