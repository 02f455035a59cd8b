"""Copies that land in several blocks' slots: few orders are explored, and every verdict is kept."""

import random
from dataclasses import replace

import pytest
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.sim.protocol.agents import Op
from tvm_hopper.sim.protocol.check import Skeleton, explore, explore_skeleton, extract_skeletons
from tvm_hopper.sim.protocol.order import RunAhead
from tvm_hopper.sim.protocol.system import System
from tvm_hopper.simulation import load
from tvm_hopper.testing import workloads

from .multicast_programs import disturbed, draw
from .test_symmetry import judge

LATE = (893, 1507, 1510)  # bytes expected apart, behind an arrival: their hangs were left out once


def compare(seed, limit=4000):
    """Return the verdict of all orders, once that of the reductions is the same; None if cut."""
    rng = random.Random(seed)
    agents = draw(rng)
    if seed % 4:
        agents = disturbed(agents, rng)
    complete, _, want = judge(agents, limit, reduce=False, merge=False)
    if not complete and not want:
        return None
    done, _, found = judge(agents, 20000)
    assert done or found
    assert bool(found) == bool(want), (seed, want, found)
    return want


@pytest.mark.parametrize("seed", LATE)
def test_bytes_expected_behind_an_arrival_may_hang(seed):
    assert "DEADLOCK" in compare(seed)


def test_random_clusters_get_the_verdict_that_all_orders_give():
    verdicts = [compare(seed) for seed in range(80)]
    assert sum(verdict == set() for verdict in verdicts) > 12
    assert sum(bool(verdict) for verdict in verdicts) > 40


@pytest.mark.slow
def test_thousands_of_random_clusters_get_the_verdict_that_all_orders_give():
    verdicts = [compare(seed) for seed in range(80, 6000)]
    assert sum(verdict == set() for verdict in verdicts) > 1500


def product(cluster, m=512, n=512, k=1024, layout="NT"):
    sch = s_tir.Schedule(workloads.matmul(m, n, k, layout, "float16", "float16"))
    hs.matmul(sch, "C", hs.MatmulConfig((64, 64, 64), cluster=cluster) if cluster else None)
    return load(sch)


@pytest.mark.parametrize(
    ("cluster", "most"),
    [
        ((2, 2), 80),
        ((4, 1), 90),
        pytest.param((2, 4), 110, marks=pytest.mark.slow),
        pytest.param((8, 1), 140, marks=pytest.mark.slow),
        pytest.param((1, 8), 140, marks=pytest.mark.slow),
    ],
)
def test_products_of_clusters_have_few_states(cluster, most):
    program = product(cluster)
    report = explore_skeleton(*program.kernels.values(), program.host)
    assert report.verdict == "clean", report.findings
    assert report.states < most  # of two clusters; 200000 were not enough once


@pytest.mark.slow
def test_the_default_of_a_product_whose_rows_begin_off_a_sector_has_few_states():
    program = product(None, 632, 616, 3736, "NN")
    report = explore_skeleton(*program.kernels.values(), program.host)
    assert report.verdict == "clean", report.findings
    assert report.states < 110


@pytest.fixture(scope="module")
def square():
    program = product((2, 2))
    return extract_skeletons(*program.kernels.values(), program.host)[0]


def _changed(kind, nth, change):
    """Return a bug: the nth step of a kind, of the first agent that has it, becomes others."""

    def bug(agents):
        agents = list(agents)
        for number, agent in enumerate(agents):
            places = [place for place, op in enumerate(agent.ops) if kind(op)]
            if places:
                ops = list(agent.ops)
                place = places[nth]
                ops[place : place + 1] = change(ops[place])
                agents[number] = replace(agent, ops=tuple(ops))
                return agents
        raise AssertionError

    return bug


def _is_release(op):
    return op.kind == "arrive" and not op.targets[0][2]


def _is_expected(op):
    return op.kind == "arrive" and op.targets[0][2]


def _with(position, value):
    def change(op):
        target = list(op.targets[0])
        target[position] = value if value > 3 else target[position] + value
        return [replace(op, targets=(tuple(target), *op.targets[1:]))]

    return change


BUGS = {
    "no release of a neighbour": _changed(_is_release, 1, lambda op: []),
    "a release twice": _changed(_is_release, 1, lambda op: [op, op]),
    "a release of the wrong block": _changed(
        _is_release, 1, lambda op: [replace(op, targets=(((3, *op.targets[0][0][1:]), 1, 0),))]
    ),
    "one release too few counted": _changed(
        lambda op: op.kind == "init" and op.targets[0][1] == 3, 0, _with(1, -1)
    ),
    "more bytes expected": _changed(_is_expected, 2, _with(2, 32768)),
    "fewer bytes expected": _changed(_is_expected, 0, _with(2, 8192)),
    "a copy to one block alone": _changed(
        lambda op: op.kind == "load", 3, lambda op: [replace(op, targets=op.targets[:1])]
    ),
    "a slot filled before it is free": _changed(
        lambda op: op.kind == "wait" and op.value == 0, 0, lambda op: []
    ),
    "bytes expected once more": _changed(
        _is_expected, 1, lambda op: [op, Op("expect", ((op.targets[0][0], 0, 16),))]
    ),
    "a use without its wait": _changed(
        lambda op: op.kind == "wait" and op.threads == 128, 0, lambda op: []
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_a_product_of_a_cluster_is_found(square, name):
    system = System(BUGS[name](square.agents), square.system.threads, 4, square.counted)
    skeleton = Skeleton([], system.agents, system, True, "", False)
    stuck, _, _ = explore(skeleton, 1000)
    assert stuck or system.violations


def test_who_waits_for_bytes_runs_ahead_as_far_as_they_come(square):
    """A frozen producer holds back all that its copies go to, and whom these would release."""
    system = square.system
    state = system.initial()
    producers = [number for number, a in enumerate(system.agents) if len(a.ops) > 50]
    users = [number for number, a in enumerate(system.agents) if a.threads == 128]
    moved = True
    while moved:  # up to the first waits
        moved = False
        for number, agent in enumerate(system.agents):
            while agent.ops[state.positions[number] :][:1] and (
                agent.ops[state.positions[number]].kind != "wait"
            ):
                if (after := system.step(state, number)) is None:
                    break
                state, moved = after, moved or after != state
                if after.tickets[number] >= 0 and after.positions == state.positions:
                    break
    assert len(producers) == len(users) == 4
    ahead = RunAhead(system, state, producers[0], None)
    for _ in ahead.steps():
        pass
    held = [ahead.positions[number] == state.positions[number] for number in users]
    assert held == [True, True, True, False]  # the last shares neither rows nor columns with it
