"""Where a proxy fence counts, with agents ordered by an mbarrier or by a flag: all 2^6 switches.

The law: an ordinary access and an asynchronous one of the same bytes are ordered if and only if the
wait is there, and a fence stands after the access and before the arrive (b), or after the wait and
before the copy (e).  Fences before the access (a), after the arrive (c) or before the wait (d) are
worth nothing.
"""

from itertools import product

import pytest

from tests.seeded.golden.litmus import HAZARDS, PLACES, across_ctas, shared
from tests.seeded.lowering import lower
from tests.seeded.running import run

FENCE = {
    "raw": "PROXY_FENCE_MISSING",
    "war": "PROXY_FENCE_MISSING_WAR",
    "waw": "PROXY_FENCE_MISSING",
}
RACES = {"RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY", "RACE_WRITE_WRITE", "UNINIT_READ"}
POLICIES = (("eager", 0), ("on_wait", 0), ("random", 1))


def found(kernel):
    lowered = lower(kernel.func)
    rules = set()
    for policy, seed in POLICIES:
        rules |= run(kernel, lowered, policy=policy, seed=seed).rules
    return rules - {"OUTPUT_COVERAGE"}  # a litmus kernel need not write all its tensors


def table(build, hazard, wait):
    for switches in product((False, True), repeat=len(PLACES)):
        fences = frozenset(place for place, on in zip(PLACES, switches, strict=True) if on)
        yield fences, found(build(hazard, fences, wait))


@pytest.mark.parametrize(
    ("build", "hazard"),
    [
        pytest.param(build, hazard, id=f"{name}-{hazard}", marks=[] if quick else pytest.mark.slow)
        for build, name in ((shared, "shared"), (across_ctas, "global"))
        for hazard in HAZARDS
        for quick in [(name, hazard) in (("global", "raw"),)]
    ],
)
def test_with_the_wait_a_fence_counts_at_b_and_e_alone(build, hazard):
    wrong = {
        "".join(sorted(fences)): rules
        for fences, rules in table(build, hazard, wait=True)
        if rules != (set() if fences & {"b", "e"} else {FENCE[hazard]})
    }
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("build", [shared, across_ctas], ids=["shared", "global"])
def test_without_the_wait_no_fence_helps(build, hazard):
    clean = {
        "".join(sorted(fences)): rules
        for fences, rules in table(build, hazard, wait=False)
        if not rules & RACES
    }
    assert clean == {}
