"""Find the compute stages of a pipelined loop, by TVM's annotations.

    software_pipeline_stage = [0, 1, 2]      copy; compute(c, a); use(c): one iteration after

TVM's pass makes versions of what the iteration allocates. Here shared arrays have them; what hands
registers on runs together. What is around the loop has one version: where a statement would
touch it in another order than the program has, all that compute stay in one iteration, and
`Lateness.reason` says why.

    software_pipeline_stage = [0, 0, 0, 1]      copy; S = A B; P = f(S); O = O + P V

A product by warp groups may run one iteration late though it reads registers: it is issued behind
the first product of the next iteration, and multiplies while threads compute on what that one left.
Registers have one version; so what shares them with it follows that first product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.effects import Effect, find_effects
from tvm_hopper.requests.keys import ASYNC_OP, SHIFT, STAGE
from tvm_hopper.transforms.common.channel import find_loads, is_load, is_store
from tvm_hopper.transforms.common.stage_annotations import parts_of, read_stages


@dataclass(frozen=True)
class Lateness:
    """The statements of a loop, and how many iterations each lags after the first that computes.

    - `iterations`: 0 for loads; of stores that of what writes their tile.
    - `stages`: those that compute.
    - `registers`: names of those by which statements of several stages are bound to one iteration.
    - `reason`: why all iterations are 0 though the stages differ; None: there is none.
    """

    parts: tuple[ir.Stmt, ...]
    trips: tuple[int, ...]
    stages: tuple[int, ...] = ()
    registers: tuple[str, ...] = ()
    reason: str | None = None

    def remark(self, where: str) -> str | None:
        """Say which stages run after others, or why none does; None where there is one stage."""
        if self.reason is not None:
            return f"{where}: stages {list(self.stages)} compute in one iteration: {self.reason}"
        late = sorted({x for x in self.trips if x})
        if not late and not self.registers:
            return None
        if not late:
            names = ", ".join(self.registers)
            return (
                f"{where}: stages {list(self.stages)} compute in one iteration: registers {names} "
                "are handed on in it"
            )
        plural = "s" if late != [1] else ""
        trips = ", ".join(map(str, late))
        return f"{where}: later stages of {list(self.stages)} run {trips} iteration{plural} late"


def find_lateness(loop: ir.For) -> Lateness:
    """Decide for a loop with stages; where it cannot be done, say why and let all stay."""
    parts = parts_of(loop)
    stages = read_stages(loop, parts).stages
    computing = [s for s, part in zip(stages, parts, strict=True) if _computes(part)]
    first = min(computing, default=0)
    trips = [s - first if _computes(part) else 0 for s, part in zip(stages, parts, strict=True)]
    own = tuple(sorted(set(computing)))
    reason, registers = None, []
    if any(trips):
        for n, part in enumerate(parts):  # a store goes with what writes its tile
            if is_store(part):
                trips[n] = max(trips[i] for i in range(n + 1) if _writes_for(parts[i], part))
        registers = _join_by_registers(parts, trips, lead_of(parts, trips))
        reason = _find_obstacle(loop, parts, trips)
    if reason is not None:
        trips = [0] * len(parts)
    return Lateness(parts, tuple(trips), own, tuple(x.name for x in registers), reason)


def lead_of(parts: Sequence[ir.Stmt], trips: Sequence[int]) -> int:
    """Return how many statements are issued before a late product; 0 if none is late."""
    products = [n for n, x in enumerate(parts) if _multiplies(x)]
    early = [n for n in products if not trips[n]]
    return early[0] + 1 if early and len(early) < len(products) else 0


def _multiplies(part: ir.Stmt) -> bool:
    return _computes(part) and bool(ir.find_blocks(part, ASYNC_OP))


def _join_by_registers(parts: Sequence[ir.Stmt], trips: list[int], lead: int) -> list[ir.Var]:
    """Let what hands registers on run together, and return these.

    Fragments of one iteration and of the next at once cost more than they bring: a product by
    `mma.sync` of 4096 in each direction took 438 instead of 400 us so (H200).
    """
    effects = [[x for x in find_effects(part) if not _is_memory(x.buffer)] for part in parts]
    found: list[ir.Var] = []
    pairs = [
        (a, b)
        for a, b in combinations(range(len(parts)), 2)
        if not _is_handed_on(parts, trips, lead, a, b)
    ]
    while apart := [
        (a, b) for a, b in pairs if trips[a] != trips[b] and _shared_by(effects[a], effects[b])
    ]:
        for a, b in apart:
            found += _shared_by(effects[a], effects[b])
            trips[a] = trips[b] = min(trips[a], trips[b])
    return ir.once(found)


def _is_handed_on(
    parts: Sequence[ir.Stmt], trips: Sequence[int], lead: int, a: int, b: int
) -> bool:
    """Tell a product that runs one iteration after a statement before it, and follows it still."""
    return lead <= a < b and bool(lead) and _multiplies(parts[b]) and (trips[a], trips[b]) == (0, 1)


def _is_memory(buffer: ir.Var) -> bool:
    return ir.is_shared(buffer) or str(buffer.scope()) in ("", "global")


def _writes_for(part: ir.Stmt, store: ir.SBlockRealize) -> bool:
    if part.same_as(store):
        return True
    tiles = [region.source for region in store.block.reads if ir.is_shared(region.source)]
    return _computes(part) and any(ir.uses(part, tile) for tile in tiles)


def staged_loops(body: ir.Stmt) -> list[ir.For]:
    """Return the loops with stages among whose statements loads are."""
    loops = ir.find_all(body, ir.For, lambda x: STAGE in x.annotations)
    return [loop for loop in loops if any(map(is_load, parts_of(loop)))]


def _computes(part: ir.Stmt) -> bool:
    return not is_load(part) and not is_store(part)


def _find_obstacle(loop: ir.For, parts: Sequence[ir.Stmt], trips: Sequence[int]) -> str | None:
    """Say why no statement of a loop may run late; None if some may."""
    return (
        _obstacle_of_loop(loop, parts)
        or _obstacle_of_statements(parts, trips)
        or _obstacle_of_tiles(loop, parts, trips)
    )


def _obstacle_of_loop(loop: ir.For, parts: Sequence[ir.Stmt]) -> str | None:
    if loop.kind != ir.ForKind.SERIAL:
        return "it is no serial loop"
    counts = ir.find_all(loop.extent, ir.TensorLoad)
    if any(str(x.source.scope()) not in ("", "global") for x in counts):
        return "its extent is read from memory of threads"
    stages = [int(x) for x in loop.annotations[STAGE]]
    loads = [s for s, part in zip(stages, parts, strict=True) if is_load(part)]
    computing = [s for s, part in zip(stages, parts, strict=True) if _computes(part)]
    if loads and computing and max(loads) > min(computing):
        return "copies stand in a later stage than what computes first"
    return None


def _obstacle_of_statements(parts: Sequence[ir.Stmt], trips: Sequence[int]) -> str | None:
    for part, late in zip(parts, trips, strict=True):
        if isinstance(part, tirx.Bind):
            return f"{part.var.name} is bound among them"
        if late and find_loads(part):
            return "copies stand inside of a later one"
        if late > 1 and _multiplies(part):
            return "a later one multiplies by warp groups, more than one iteration late"
    if any(late and _multiplies(part) for part, late in zip(parts, trips, strict=True)):
        if not lead_of(parts, trips):
            return "all products are late"
        if any(late and not _multiplies(part) for part, late in zip(parts, trips, strict=True)):
            return "others than products are late next to one"
    return None


def _obstacle_of_tiles(loop: ir.For, parts: Sequence[ir.Stmt], trips: Sequence[int]) -> str | None:
    """Look at what statements share that run in different trips."""
    body = loop.body
    own = list(body.block.alloc_buffers) if isinstance(body, ir.SBlockRealize) else []
    loaded = [region.source for x in parts if is_load(x) for region in x.block.writes]
    stored = [region.source for x in parts if is_store(x) for region in x.block.reads]
    effects, lead = [find_effects(part) for part in parts], lead_of(parts, trips)
    for a, b in combinations(range(len(parts)), 2):
        if trips[a] == trips[b] or is_load(parts[a]) or is_load(parts[b]):
            continue  # of what a load brings there are slots; its source is not written here
        for tile in _shared_by(effects[a], effects[b]):
            if not _is_memory(tile) and _is_handed_on(parts, trips, lead, a, b):
                continue
            if trips[a] > trips[b]:
                return f"a later statement needs {tile.name} of an earlier stage's"
            if any(tile.same_as(x) for x in stored):
                return f"{tile.name} is stored asynchronously"
            if not any(tile.same_as(x) for x in [*loaded, *own]):
                return f"{tile.name} is allocated around the loop, once"
    return None


def _shared_by(first: list[Effect], second: list[Effect]) -> list[ir.Var]:
    """Return what two statements touch and at least one of them writes."""
    return ir.once(
        [
            x.buffer
            for x in first
            for y in second
            if x.buffer.same_as(y.buffer) and (x.writes or y.writes)
        ]
    )


def mark_late(body: ir.Stmt, loops: list[ir.For]) -> ir.Stmt:
    """Say on the statements of loops how late they are to run."""
    planned = {}
    for loop in loops:
        lateness = find_lateness(loop)
        for part, late in zip(lateness.parts, lateness.trips, strict=True):
            if late:
                names = [block.name_hint for block in ir.find_all(part, ir.SBlock)[:1]]
                name = names[0] if names else "later"
                planned[part] = ir.opaque_block(name, part, annotations={SHIFT: late})
    return ir.replace_nodes(body, ir.Stmt, planned)
