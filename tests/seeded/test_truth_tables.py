"""Where a proxy fence counts, with agents ordered by an mbarrier or by a flag: all 2^7 switches.

The law: an ordinary access and an asynchronous one of the same bytes are ordered if and only if the
wait is there, and a fence stands after the access and before the arrive (b), or after the wait and
before the copy (e).  Fences before the access (a), after the arrive (c), before the wait (d) or by
a third thread (x) are worth nothing.
"""

from itertools import combinations

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
POLICIES = (("eager", 0), ("on_wait", 0))


def found(kernel):
    lowered = lower(kernel.func)
    rules = set()
    for policy, seed in POLICIES:
        rules |= run(kernel, lowered, policy=policy, seed=seed).rules
    return rules - {"OUTPUT_COVERAGE"}  # a litmus kernel need not write all its tensors


def table(build, hazard, wait, most):
    """Yield sets of at most so many fences, and what is found with them."""
    for count in range(most + 1):
        for fences in map(frozenset, combinations(PLACES, count)):
            yield fences, found(build(hazard, fences, wait))


BUILDS = {"shared": shared, "global": across_ctas}
MOST = [1, pytest.param(len(PLACES), marks=pytest.mark.slow)]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("name", BUILDS)
def test_with_the_wait_a_fence_counts_at_b_and_e_alone(name, hazard, most):
    wrong = {
        "".join(sorted(fences)): rules
        for fences, rules in table(BUILDS[name], hazard, True, most)
        if rules != (set() if fences & {"b", "e"} else {FENCE[hazard]})
    }
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("hazard", HAZARDS)
@pytest.mark.parametrize("name", BUILDS)
def test_without_the_wait_no_fence_helps(name, hazard):
    clean = {
        "".join(sorted(fences)): rules
        for fences, rules in table(BUILDS[name], hazard, False, len(PLACES))
        if not rules & RACES
    }
    assert clean == {}
