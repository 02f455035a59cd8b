"""Rings without WGMMA: right ones are clean, what is left out is found, roles can be starved."""

import numpy as np
import pytest

from tvm_hopper.simulation import RUNS, simulate, verify

from .pointwise_rings import inputs, with_producer, without_producer

RACES = {"RACE_OVERWRITE_BUSY", "RACE_READ_INFLIGHT"}
FENCE = {"PROXY_FENCE_MISSING_WAR"}
NEEDED_WITH = {
    "init_barrier": {"MBAR_INIT_UNPUBLISHED"},
    "empty_wait": {"RACE_OVERWRITE_BUSY", "MBAR_MISSING_WAIT"},
    "full_wait": RACES,
    "one_full_wait": RACES,
    "fence": FENCE,
    "one_fence": FENCE,
    "lane_fence": FENCE,
    "syncwarp": {"RACE_OVERWRITE_BUSY"},
    "arrive": {"DEADLOCK"},
    "one_arrive": {"DEADLOCK"},
    "two_arrives": {"MBAR_MISSING_WAIT"},
    "count": {"MBAR_MISSING_WAIT"},
    "empty_parity": {"DEADLOCK", "MBAR_PHASE_ALIAS"},
    "full_parity": {"MBAR_PHASE_ALIAS"},
}
NEEDED_WITHOUT = {
    "init_barrier": {"MBAR_INIT_UNPUBLISHED"},
    "wait": RACES,
    "one_wait": RACES,
    "fence": FENCE,
    "one_fence": FENCE,
    "barrier": RACES,
}
CASES = [(with_producer, name, rules) for name, rules in NEEDED_WITH.items()]
CASES += [(without_producer, name, rules) for name, rules in NEEDED_WITHOUT.items()]


@pytest.mark.parametrize("build", [with_producer, without_producer])
@pytest.mark.parametrize(("policy", "seed"), RUNS)
def test_a_right_ring_gives_the_sum(build, policy, seed):
    values = inputs()
    result = simulate(build(), values, policy=policy, seed=seed)
    assert not result.findings
    np.testing.assert_array_equal(result.outputs["C"], values["A"] + values["B"])


@pytest.mark.parametrize("build", [with_producer, without_producer])
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_a_right_ring_verifies(build, slots):
    verify(build("", slots, 6), inputs()).require_clean()


@pytest.mark.parametrize(("build", "name", "rules"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_without_one_synchronisation_verify_finds_it(build, name, rules):
    report = verify(build(name), inputs())
    assert rules <= {f.rule for f in report.findings}
    assert "error" in {verdict for _, _, verdict in report.runs}  # not by the skeleton alone


def test_a_missing_syncwarp_is_named():
    result = simulate(with_producer("syncwarp"), inputs())
    found = result.findings[0]
    assert found.rule == "RACE_OVERWRITE_BUSY"
    assert "lanes that had not met" in found.message
    assert found.missing.startswith("bar.warp.sync between the lanes of")


# -- roles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (with_producer, {"producer (warp 0)", "consumer (warps 1-8)"}),
        (without_producer, {"all 8 warps"}),  # one of which issues the copies for all
    ],
)
def test_the_roles_of_plain_warps_have_lanes(build, names):
    lanes = {lane.name for lane in simulate(build(), inputs()).timeline().lanes}
    assert lanes - {"TMA loads", "global memory"} == names


def landed_before_a_consumer_goes_on(build, policy):
    """Count the copies that are complete when a warp but the first goes on behind a wait."""
    events = simulate(build(), inputs(), policy=policy).events
    first = min(e.start for e in events if e.kind == "acquire" and e.warp)
    return sum(e.kind == "TMA load" and e.end < first for e in events)


def test_starved_consumers_let_the_producer_fill_the_ring():
    # two copies a slot; a warp that is not starved goes on when the first slot is full
    assert landed_before_a_consumer_goes_on(with_producer, "starve:consumer") == 8
    assert landed_before_a_consumer_goes_on(with_producer, "starve:producer") == 2
    assert landed_before_a_consumer_goes_on(with_producer, "on_wait") == 2


def test_a_starved_producer_lets_the_consumers_empty_the_ring():
    events = simulate(with_producer(), inputs(), policy="starve:producer").events
    again = sorted(e.start for e in events if e.kind == "TMA load")[8]
    # each consumer has used all four slots and waits for the first one again
    waits = [e for e in events if e.kind == "wait" and e.barrier == "full" and e.slot == 0]
    assert {e.warp for e in waits if e.start < again < e.end} == set(range(1, 9))


def test_warps_beside_the_one_that_loads_are_starved():
    few = landed_before_a_consumer_goes_on(without_producer, "on_wait")
    assert landed_before_a_consumer_goes_on(without_producer, "starve:consumer") > few
