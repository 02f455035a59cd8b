"""Random bodies: the placed syncs make every path safe, and each is needed on some path.

Both are held against the interpreter for paths of up to four trips a loop. Left out are bodies that
the engine refuses (5 % of what is drawn) and those with too many paths for it (2 %).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings, strategies as st

from tests.sync.interpreter import TooManyStates, find_unsafe, makes_every_copy
from tvm_hopper.facts.async_ops import ASYNC_OPS, CP_ASYNC_GROUP
from tvm_hopper.sync import (
    Access,
    Body,
    Branch,
    Buffer,
    Commit,
    Loop,
    Path,
    Placement,
    Step,
    Wait,
    place_syncs,
)
from tvm_hopper.sync.program import Statement

TILE = Buffer("tile", "shared")
RING = Buffer("ring", "shared", 2)
LONG = Buffer("long", "shared", 3)
HANDED = Buffer("handed", "shared", 2, proxy="generic")  # another agent fills it by cp.async
ACC, FRAGMENT = Buffer("acc", "registers"), Buffer("fragment", "registers")
OUT = Buffer("out", "global")

# Rings whose copies are made only if they are read.
AHEAD, FAR_AHEAD = Buffer("ahead", "shared", 2), Buffer("far", "shared", 3)
RINGS = [RING, LONG, HANDED, AHEAD, FAR_AHEAD]

shared = st.one_of(
    st.tuples(st.just(TILE), st.just(0)),
    st.tuples(st.sampled_from([RING, LONG, HANDED]), st.integers(-1, 2)),
)
promised = st.tuples(st.sampled_from([AHEAD, FAR_AHEAD]), st.integers(-1, 2))
issuers = st.sampled_from(["all", "thread"])


def read(place: tuple[Buffer, int]) -> Access:
    return Access(place[0], False, place[1])


def write(place: tuple[Buffer, int]) -> Access:
    return Access(place[0], True, place[1])


@st.composite
def steps(draw: st.DrawFn, is_uniform: bool) -> Step:
    kinds = ["plain", "cp_async", "tma_store", "tma_reduce"]
    if is_uniform:
        kinds += ["plain", "tma_load", "bulk_load", "cp_async_arrive", "wgmma", "wgmma"]
        kinds += ["release", "acquire", "ahead"]
    kind = draw(st.sampled_from(kinds))
    if kind == "ahead":
        places = draw(st.lists(promised, min_size=1, max_size=2, unique_by=lambda x: x[0]))
        op = draw(st.sampled_from(["tma_load", "bulk_load"]))
        return Step(kind, tuple(map(write, places)), op, draw(issuers), only_if_read=True)
    if kind in ("plain", "wgmma", "tma_store") and draw(st.booleans()):
        return draw(readers(kind))
    place = draw(shared)
    out = [(OUT, 0)] if draw(st.integers(0, 3)) == 0 else []
    if kind == "plain":
        others = [(ACC, 0), (FRAGMENT, 0), (OUT, 0)]
        places = draw(st.lists(st.one_of(shared, st.sampled_from(others)), min_size=1, max_size=2))
        accesses = [Access(b, draw(st.booleans()), ahead) for b, ahead in places]
        return Step(kind, tuple(accesses), None, draw(issuers))
    if kind == "release":
        return Step(kind, (read(place),), is_release=True)
    if kind == "wgmma":
        sources = [place] + ([(FRAGMENT, 0)] if draw(st.booleans()) else [])
        return Step(kind, (*map(read, sources), write((ACC, 0))), kind)
    if kind == "acquire":
        return Step(kind, (write(place),), is_acquire=True)
    if kind in ("tma_store", "tma_reduce"):
        return Step(kind, (read(place), *map(write, out)), kind, draw(issuers))
    return Step(kind, (*map(read, out), write(place)), kind, draw(issuers))


@st.composite
def readers(draw: st.DrawFn, kind: str, places: st.SearchStrategy = promised) -> Step:
    """Return a step that reads what is copied only if it is read."""
    source = read(draw(places))
    if kind == "wgmma":
        return Step("mma", (source, write((ACC, 0))), kind)
    if kind == "tma_store":
        return Step("store", (source,), kind, draw(issuers))
    more = [Access(draw(shared)[0], draw(st.booleans()))] if draw(st.booleans()) else []
    return Step("use", (source, *more), None, draw(issuers))


@st.composite
def bodies(draw: st.DrawFn, depth: int = 3, is_uniform: bool = True) -> Body:
    body = []
    for _ in range(draw(st.integers(1, 4 if depth == 3 else 3))):
        kind = draw(st.sampled_from(["step"] * 4 + ["loop", "branch"] if depth > 1 else ["step"]))
        if kind == "step":
            body.append(draw(steps(is_uniform)))
        elif kind == "loop":
            rings = draw(st.frozensets(st.sampled_from(RINGS))) if is_uniform else frozenset()
            inner = draw(bodies(depth - 1, is_uniform))
            body.append(Loop("loop", inner, rings, draw(st.integers(0, 1))))
        else:
            both = is_uniform and draw(st.integers(0, 3)) > 0
            arms = tuple(draw(bodies(depth - 1, both)) for _ in range(draw(st.integers(1, 2))))
            body.append(Branch((*arms, ()) if len(arms) == 1 else arms, both or not is_uniform))
    return tuple(body)


@st.composite
def rings(draw: st.DrawFn) -> tuple[Body, Body, Buffer]:
    """Return what stands in front of a loop and in it, for a ring that its own threads fill."""
    ring = draw(st.sampled_from([AHEAD, FAR_AHEAD]))
    op = draw(st.sampled_from(["tma_load", "bulk_load"]))
    ahead = draw(st.integers(1, ring.num_slots - 1))

    def load(*versions: int) -> Step:
        accesses = tuple(write((ring, version)) for version in versions)
        return Step("load", accesses, op, "thread", only_if_read=True)

    front = draw(st.sampled_from([(), tuple(map(load, range(ahead))), (load(*range(ahead)),)]))
    kind = draw(st.sampled_from(["plain", "plain", "wgmma", "tma_store"]))
    use = draw(readers(kind, st.just((ring, draw(st.integers(0, 1))))))
    body = [load(ahead), *draw(st.lists(steps(True).filter(_promises_nothing), max_size=2))]
    around = draw(st.sampled_from(["step", "step", "branch", "loop", "diverging"]))
    if around in ("branch", "diverging") and kind != "wgmma":
        body.append(Branch(((use,), ()), around == "branch"))
    elif around == "loop":
        body.append(Loop("inner", (use,), min_trips=draw(st.integers(0, 1))))
    else:
        body.append(use)
    return front, tuple(draw(st.permutations(body))), ring


def _promises_nothing(step: Step) -> bool:
    return not step.only_if_read


@st.composite
def pipelines(draw: st.DrawFn) -> Body:
    """Draw one or two loops over rings, or one over both, and perhaps a loop around them."""
    first, inside, ring = draw(rings())
    more = (*first, Loop("k", inside, frozenset([ring]), draw(st.integers(0, 1))))
    if draw(st.integers(0, 2)) == 0:
        second, beside, other = draw(rings().filter(lambda x: x[2] != ring))
        both = Loop("k", (*inside, *beside), frozenset([ring, other]), draw(st.integers(0, 1)))
        more = (*first, *second, both)
    if draw(st.booleans()):
        more = (*more, draw(readers("plain", st.just((ring, draw(st.integers(0, 1)))))))
    return (Loop("tiles", more),) if draw(st.integers(0, 2)) == 0 else more


def statement(body: Body, path: Path) -> Statement | None:
    """Return the statement at a path, None at the end of a body."""
    at, *rest = path
    if at == len(body) or not rest:
        return None if at == len(body) else body[at]
    node = body[at]
    inner, below = (node.body, rest) if isinstance(node, Loop) else (node.arms[rest[0]], rest[1:])
    return statement(inner, tuple(below))


def divides(body: Body, placement: Placement) -> bool:
    """Tell a commit between copies for different trips: without it waits are for more, and safe."""
    behind = statement(body, placement.path)
    if not isinstance(placement.sync, Commit) or not isinstance(behind, Step) or behind.op is None:
        return False
    return ASYNC_OPS[behind.op].completion == placement.sync.completion == CP_ASYNC_GROUP


def weaker(body: Body, placements: tuple[Placement, ...]) -> Iterator[tuple[Placement, ...]]:
    """Yield the placements with one sync taken away, or one Wait made weaker."""
    for i, placement in enumerate(placements):
        sync = placement.sync
        if divides(body, placement):
            continue
        insteads = [()]
        if isinstance(sync, Wait):
            insteads.append((replace(sync, num_pending=sync.num_pending + 1),))
            if sync.completion == "bulk_group" and not sync.read_only:
                insteads.append((replace(sync, read_only=True),))
        for instead in insteads:
            new = tuple(replace(placement, sync=sync) for sync in instead)
            yield (*placements[:i], *new, *placements[i + 1 :])


def judge(body: Body) -> None:
    """Hold what the engine places against the interpreter."""
    try:
        placements = place_syncs(body)
    except ValueError as error:
        assume("not uniform" not in str(error))
        raise
    try:
        assert find_unsafe(body, placements) is None
        assume(makes_every_copy(body, placements))
        for fewer in weaker(body, placements):
            assert find_unsafe(body, fewer) is not None, set(placements) - set(fewer)
    except TooManyStates:
        assume(False)


every = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@settings(every, max_examples=80)
@given(bodies())
def test_placed_syncs_are_enough_and_none_is_superfluous(body: Body) -> None:
    judge(body)


@settings(every, max_examples=25)
@given(pipelines())
def test_the_same_of_rings_that_are_filled_ahead(body: Body) -> None:
    judge(body)


def overlay(body: Body) -> Body:
    """Let the tile and the long ring lie in the same bytes."""
    new = {
        TILE: replace(TILE, overlays=frozenset([LONG.name])),
        LONG: replace(LONG, overlays=frozenset([TILE.name])),
    }

    def change(statement):
        if isinstance(statement, Step):
            accesses = tuple(
                replace(x, buffer=new.get(x.buffer, x.buffer)) for x in statement.accesses
            )
            return replace(statement, accesses=accesses)
        if isinstance(statement, Loop):
            advances = frozenset(new.get(x, x) for x in statement.advances)
            return replace(statement, body=overlay(statement.body), advances=advances)
        return replace(statement, arms=tuple(map(overlay, statement.arms)))

    return tuple(map(change, body))


@settings(every, max_examples=60)
@given(bodies())
def test_buffers_in_the_same_bytes_are_kept_apart_by_syncs(body: Body) -> None:
    judge(overlay(body))
