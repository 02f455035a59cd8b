"""Random bodies: the placed syncs make every path safe, and each is needed on some path.

Both are held against the interpreter for paths of up to four trips a loop. Left out are bodies that
the engine refuses (5 % of what is drawn) and those with too many paths for it (2 %).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.sync.interpreter import TooManyStates, find_unsafe
from tvm_hopper.sync import (
    Access,
    Body,
    Branch,
    Buffer,
    Loop,
    Placement,
    Step,
    Wait,
    place_syncs,
)

TILE = Buffer("tile", "shared")
RING = Buffer("ring", "shared", 2)
LONG = Buffer("long", "shared", 3)
ACC, FRAGMENT = Buffer("acc", "registers"), Buffer("fragment", "registers")
OUT = Buffer("out", "global")

shared = st.one_of(
    st.tuples(st.just(TILE), st.just(0)),
    st.tuples(st.sampled_from([RING, LONG]), st.integers(-1, 2)),
)
issuers = st.sampled_from(["all", "thread"])


def read(place: tuple[Buffer, int]) -> Access:
    return Access(place[0], False, place[1])


def write(place: tuple[Buffer, int]) -> Access:
    return Access(place[0], True, place[1])


@st.composite
def steps(draw: st.DrawFn, is_uniform: bool) -> Step:
    kinds = ["plain", "cp_async", "tma_store", "tma_reduce"]
    if is_uniform:
        kinds += ["plain", "tma_load", "bulk_load", "wgmma", "wgmma", "release"]
    kind = draw(st.sampled_from(kinds))
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
    if kind in ("tma_store", "tma_reduce"):
        return Step(kind, (read(place), *map(write, out)), kind, draw(issuers))
    return Step(kind, (*map(read, out), write(place)), kind, draw(issuers))


@st.composite
def bodies(draw: st.DrawFn, depth: int = 3, is_uniform: bool = True) -> Body:
    body = []
    for _ in range(draw(st.integers(1, 4 if depth == 3 else 3))):
        kind = draw(st.sampled_from(["step"] * 4 + ["loop", "branch"] if depth > 1 else ["step"]))
        if kind == "step":
            body.append(draw(steps(is_uniform)))
        elif kind == "loop":
            rings = (
                draw(st.frozensets(st.sampled_from([RING, LONG]))) if is_uniform else frozenset()
            )
            inner = draw(bodies(depth - 1, is_uniform))
            body.append(Loop("loop", inner, rings, draw(st.integers(0, 1))))
        else:
            both = is_uniform and draw(st.integers(0, 3)) > 0
            arms = tuple(draw(bodies(depth - 1, both)) for _ in range(draw(st.integers(1, 2))))
            body.append(Branch((*arms, ()) if len(arms) == 1 else arms, both or not is_uniform))
    return tuple(body)


def weaker(placements: tuple[Placement, ...]) -> Iterator[tuple[Placement, ...]]:
    """Yield the placements with one sync taken away, or one Wait made weaker."""
    for i, placement in enumerate(placements):
        sync = placement.sync
        insteads = [()]
        if isinstance(sync, Wait):
            insteads.append((replace(sync, num_pending=sync.num_pending + 1),))
            if sync.completion == "bulk_group" and not sync.read_only:
                insteads.append((replace(sync, read_only=True),))
        for instead in insteads:
            new = tuple(replace(placement, sync=sync) for sync in instead)
            yield (*placements[:i], *new, *placements[i + 1 :])


@settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(bodies())
def test_placed_syncs_are_enough_and_none_is_superfluous(body: Body) -> None:
    try:
        placements = place_syncs(body)
    except ValueError as error:
        assume("not uniform" not in str(error))
        raise
    try:
        assert find_unsafe(body, placements) is None
        for fewer in weaker(placements):
            assert find_unsafe(body, fewer) is not None, set(placements) - set(fewer)
    except TooManyStates:
        assume(False)
