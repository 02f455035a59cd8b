"""CTAs that share the cluster barrier alone: following one after the other keeps every verdict."""

import random
from types import SimpleNamespace

import pytest

from tvm_hopper.sim.protocol.agents import Op, SkeletonAgent
from tvm_hopper.sim.protocol.check import Skeleton, explore
from tvm_hopper.sim.protocol.independent_ctas import IndependentCtas
from tvm_hopper.sim.protocol.order import RunAhead
from tvm_hopper.sim.protocol.system import System

LIMIT = 6000


def skeleton(agents, ctas):
    return Skeleton([], agents, System(agents, 64, ctas), True, "", False)


def judge(agents, ctas, limit=LIMIT, **flags):
    """Return whether all states were visited, how many, and what is broken."""
    made = skeleton(agents, ctas)
    stuck, states, complete = explore(made, limit, **flags)
    rules = {v.rule for v in made.system.violations.values()}
    return complete, states, rules | ({"DEADLOCK"} if stuck else set())


def pair(cta, trips, slots=1, arrivals=1, meetings=1):
    """Return a producer and a consumer of one CTA, which meets the others behind its trips."""
    full = [(cta, "smem", 8 * s) for s in range(slots)]
    empty = [(cta, "smem", 8 * (slots + s)) for s in range(slots)]
    event = SimpleNamespace(node=object(), loops=())
    meet = Op("bar", (((cta, "bar", 0), -1, 0),), 0, 32, event)
    produce = [*(Op("init", ((key, 1, 0),)) for key in (*full, *empty)), meet]
    consume = [meet]
    for trip in range(trips):
        slot, parity = trip % slots, trip // slots % 2
        produce += [
            Op("wait", ((empty[slot], 0, 0),), parity ^ 1, 1),
            Op("arrive", ((full[slot], 1, 32),)),
            Op("load", ((full[slot], 0, 32),)),
        ]
        consume.append(Op("wait", ((full[slot], 0, 0),), parity, 32))
        consume += [Op("arrive", ((empty[slot], 1, 0),))] * arrivals
    for _ in range(meetings):
        consume += [Op("cluster_arrive", (), 0, 32), Op("cluster_wait", (), 0, 32)]
    return [
        SkeletonAgent(cta, f"producer{cta}", tuple(produce)),
        SkeletonAgent(cta, f"consumer{cta}", tuple(consume)),
    ]


def cluster(ctas, **how):
    return [agent for cta in range(ctas) for agent in pair(cta, **how)]


@pytest.mark.parametrize("ctas", [2, 4, 8])
def test_states_add_up_instead_of_multiplying(ctas):
    complete, states, found = judge(cluster(ctas, trips=4, slots=2, meetings=2), ctas, 200_000)
    assert complete
    assert found == set()
    assert states < 60 * ctas


@pytest.mark.parametrize("ctas", [2, 4, 8])
def test_a_cta_that_comes_once_less_blocks_the_others(ctas):
    agents = [*cluster(ctas - 1, trips=2, meetings=2), *pair(ctas - 1, 2)]
    # its threads have exited: the others go on without them
    assert judge(agents, ctas)[2] == set()
    waiting = [*cluster(ctas - 1, trips=2, meetings=2), *pair(ctas - 1, 2, arrivals=0)]
    complete, _, found = judge(waiting, ctas)
    assert complete
    assert "DEADLOCK" in found


def test_agents_of_one_cta_stay_together():
    apart = IndependentCtas(System(cluster(3, trips=1), 64, 3))
    assert apart.system.groups == [frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5})]


def test_ctas_that_reach_into_one_another_are_followed_together():
    agents = cluster(3, trips=1)
    remote = Op("arrive", (((2, "smem", 0), 1, 0),))
    agents[0] = SkeletonAgent(0, "producer0", (*agents[0].ops, remote))
    groups = System(agents, 64, 3).groups
    assert groups == [frozenset({0, 1, 4, 5}), frozenset({2, 3})]


def test_a_cluster_barrier_that_is_met_out_of_turn_is_followed_in_every_order():
    agents = cluster(2, trips=1)
    twice = Op("cluster_arrive", (), 0, 32)
    agents[1] = SkeletonAgent(0, "consumer0", (*agents[1].ops[:-1], twice, agents[1].ops[-1]))
    assert System(agents, 64, 2).groups == []


def test_a_set_that_nobody_of_has_to_come_is_not_followed_alone():
    system = System(cluster(2, trips=0), 64, 2)
    apart, state = IndependentCtas(system), system.initial()
    assert list(apart.able(state)) == apart.system.groups
    for agent in (0, 1):  # all of the first CTA: it has exited, or waits for the other one
        while (after := system.step(state, agent)) is not None:
            state = after
    assert list(apart.able(state)) == apart.system.groups[1:]


def test_agents_to_run_ahead_of_what_stands_still():
    """Agents that run, and whether they may pass the cluster barrier."""
    system = System(cluster(2, trips=0), 64, 2)
    state = system.initial()
    assert RunAhead(system, state, 0, None).agents_to_run()[0] == [1]
    # no agent passes it without this one
    assert not RunAhead(system, state, 3, None).agents_to_run()[1]
    landing = RunAhead(system, state, None, 0)  # a copy: others may have come meanwhile
    assert landing.agents_to_run() == ([0, 1], True)
    for agent in (0, 1, 0, 1):  # the first CTA ends, or waits for the other one
        while (after := system.step(state, agent)) is not None:
            state = after
    assert RunAhead(system, state, 1, None).agents_to_run()[1]
    alone = System(cluster(1, trips=1), 64, 1)
    assert RunAhead(alone, alone.initial(), None, 0).agents_to_run()[0] == [0, 1]


def draw(rng):
    """Draw two CTAs whose programs may be wrong anywhere, each in its own way."""
    agents = []
    for cta in range(2):
        how = {
            "trips": rng.randint(0, 2),
            "slots": rng.randint(1, 2),
            "arrivals": rng.choice([1, 1, 1, 0, 2]),
            "meetings": rng.randint(0, 2),
        }
        for agent in pair(cta, **how):
            ops = list(agent.ops)
            if rng.random() < 0.4 and len(ops) > 5:
                del ops[rng.randrange(5, len(ops))]
            if rng.random() < 0.3:
                place = rng.randint(min(5, len(ops)), len(ops))
                ops[place:place] = [Op("cluster_arrive", (), 0, 32), Op("cluster_wait", (), 0, 32)]
            agents.append(SkeletonAgent(cta, agent.name, tuple(ops)))
    return agents


def test_random_programs_get_the_verdict_that_all_orders_give():
    results = []
    for seed in range(150):
        agents = draw(random.Random(seed))
        complete, every, want = judge(agents, 2, reduce=False, merge=False)
        if not complete:
            continue
        done, states, found = judge(agents, 2)
        assert done
        assert bool(found) == bool(want), (seed, want, found)
        assert states <= every
        results.append(bool(want))
    assert len(results) > 80
    assert 20 < sum(results) < len(results) - 20
