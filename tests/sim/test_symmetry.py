"""The explorer's reductions against visiting every state: rings of plain warps, random programs."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tvm_hopper.sim.protocol.agents import Op, SkeletonAgent
from tvm_hopper.sim.protocol.check import Skeleton, explore, explore_skeleton
from tvm_hopper.sim.protocol.symmetry import Symmetry, classes_of
from tvm_hopper.sim.protocol.system import System

from .pointwise_rings import with_producer

LIMIT = 20_000  # states that comparing may cost


def meeting():
    """Return a block barrier at a statement of its own."""
    event = SimpleNamespace(node=object(), loops=())
    return Op("bar", (((0, "bar", 0), -1, 0),), 0, 32, event)


def skeleton(agents):
    return Skeleton([], agents, System(agents, 32 * len(agents), 1), True, "", False)


def ring(consumers, slots, trips, change=lambda number, ops: ops, count=0):
    """One producer that loads two tiles a slot; consumers that wait for the slot and release it."""
    full = [(0, "smem", 8 * s) for s in range(slots)]
    empty = [(0, "smem", 8 * (slots + s)) for s in range(slots)]
    meet = meeting()
    ops = [Op("init", ((key, 1, 0),)) for key in full]
    ops += [Op("init", ((key, consumers + count, 0),)) for key in empty]
    ops.append(meet)
    for trip in range(trips):
        slot, parity = trip % slots, trip // slots % 2
        ops.append(Op("wait", ((empty[slot], 0, 0),), parity ^ 1, 1))
        ops.append(Op("arrive", ((full[slot], 1, 64),)))
        ops += [Op("load", ((full[slot], 0, 32),))] * 2
    agents = [SkeletonAgent(0, "producer", tuple(ops))]
    for number in range(consumers):
        ops = [meet]
        for trip in range(trips):
            slot, parity = trip % slots, trip // slots % 2
            ops.append(Op("wait", ((full[slot], 0, 0),), parity, 32))
            ops.append(Op("arrive", ((empty[slot], 1, 0),)))
        agents.append(SkeletonAgent(0, f"consumer{number}", tuple(change(number, ops))))
    return agents


def of_one(change):
    return lambda number, ops: change(ops) if number == 1 else ops


def with_parity_0(ops):
    return [replace(op, value=0) if op.kind == "wait" else op for op in ops]


BUGS = {
    "one arrival missing": of_one(lambda ops: ops[:4] + ops[5:]),
    "no arrival of one": of_one(lambda ops: [op for op in ops if op.kind != "arrive"]),
    "one arrives twice": of_one(lambda ops: [*ops[:5], ops[4], *ops[5:]]),
    "one arrives twice each time": of_one(
        lambda ops: [o for op in ops for o in [op] * (1 + (op.kind == "arrive"))]
    ),
    "no wait of one": of_one(lambda ops: [op for op in ops if op.kind != "wait"]),
    "no wait": lambda _, ops: [op for op in ops if op.kind != "wait"],
    "parity": lambda _, ops: with_parity_0(ops),
    "parity of one": of_one(with_parity_0),
    "one differs in the slot that it releases": of_one(lambda ops: [*ops[:2], ops[4], *ops[3:]]),
}


def judge(agents, limit=LIMIT, **flags):
    """Return whether all states were visited, how many, and what is broken."""
    made = skeleton(agents)
    stuck, states, complete = explore(made, limit, **flags)
    rules = {v.rule for v in made.system.violations.values()}
    return complete, states, rules | ({"DEADLOCK"} if stuck else set())


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("consumers", [1, 2, 4, 8, 16])
def test_a_ring_of_plain_warps_is_explored_to_its_end(consumers, slots):
    for trips in (slots - 1, slots, 2 * slots + 1):
        complete, states, found = judge(ring(consumers, slots, trips))
        assert complete
        assert found == set()
        # so many steps has one order of them
        assert states <= 2 * slots + 2 + (6 + 2 * consumers) * trips + 2 * consumers


@pytest.mark.parametrize("count", [-1, 1])
@pytest.mark.parametrize("consumers", [2, 8, 16])
def test_a_wrong_count_is_found(consumers, count):
    complete, states, found = judge(ring(consumers, 4, 9, count=count))
    assert complete
    assert found
    assert states < 2000


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize(("consumers", "slots"), [(2, 2), (8, 2), (8, 4), (16, 4)])
def test_a_bug_of_one_warp_is_found(name, consumers, slots):
    complete, states, found = judge(ring(consumers, slots, 2 * slots + 1, BUGS[name]))
    assert complete
    assert found
    assert states < 2000


@pytest.mark.parametrize("name", ["", *BUGS])
def test_small_rings_get_the_verdict_that_all_states_give(name):
    agents = ring(2, 2, 3, BUGS.get(name, lambda _, ops: ops))
    complete, every, want = judge(agents, 200_000, reduce=False, merge=False)
    assert complete
    merged, fewer, found = judge(agents, 200_000, reduce=False)
    assert merged
    if not name:
        assert fewer < every
        assert want == set()
    # a search ends at its fourth deadlock
    assert found == want or "DEADLOCK" in found & want
    assert bool(judge(agents)[2]) == bool(want)
    assert bool(judge(agents, merge=False)[2]) == bool(want)


def test_merging_alone_makes_eight_warps_small():
    complete, states, found = judge(ring(8, 2, 3), reduce=False)
    assert (complete, found) == (True, set())
    assert states < 4000
    assert not judge(ring(8, 2, 3), reduce=False, merge=False)[0]


# -- who may be merged ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in BUGS if "one" in name])
def test_a_warp_that_differs_is_in_no_class_with_the_others(name):
    assert classes_of(ring(4, 2, 5)) == [[0], [1, 2, 3, 4]]
    assert classes_of(ring(4, 2, 5, BUGS[name])) == [[0], [1, 3, 4], [2]]


def test_each_thing_that_the_system_reads_keeps_agents_apart():
    key, other = (0, "smem", 0), (0, "smem", 8)
    event = SimpleNamespace(node=object(), loops=())
    op = Op("arrive", ((key, 1, 0),), 0, 32, event)
    changed = [
        replace(op, kind="drop"),
        replace(op, targets=((other, 1, 0),)),
        replace(op, targets=((key, 2, 0),)),
        replace(op, targets=((key, 1, 16),)),
        replace(op, value=1),
        replace(op, threads=1),
        replace(op, event=SimpleNamespace(node=object(), loops=())),
    ]
    for different in changed:
        agents = [
            SkeletonAgent(0, "a", (op,)),
            SkeletonAgent(0, "b", (different,)),
            SkeletonAgent(0, "c", (op,)),
        ]
        assert classes_of(agents) == [[0, 2], [1]]
    assert classes_of([SkeletonAgent(0, "a", (op,)), SkeletonAgent(1, "b", (op,))]) == [[0], [1]]
    assert classes_of([SkeletonAgent(0, "a", (op,)), SkeletonAgent(0, "b", (op, op))]) == [[0], [1]]


def test_permutations_have_one_canonical_state():
    agents = ring(3, 2, 3)
    system, symmetry = System(agents, 128, 1), Symmetry(agents)
    start = system.initial()
    forms = {symmetry.canonical(system.step(start, number)) for number in (1, 2, 3)}
    assert len(forms) == 1
    assert symmetry.canonical(system.step(start, 0)) not in forms
    assert list(symmetry.movers(start)) == [0, 1]


def test_a_copy_of_one_of_two_alike_is_a_copy_of_either():
    key, meet = (0, "smem", 0), meeting()
    copies = [Op("arrive", ((key, 1, 32),)), Op("load", ((key, 0, 32),))]
    copies.append(Op("wait", ((key, 0, 0),)))
    agents = [SkeletonAgent(0, "maker", (Op("init", ((key, 2, 0),)), meet))]
    agents += [SkeletonAgent(0, name, (meet, *copies)) for name in "ab"]
    every, merged = judge(agents, reduce=False, merge=False), judge(agents, reduce=False)
    assert every[2] == merged[2] == set()
    assert merged[1] < every[1]


# -- random programs ------------------------------------------------------------------------------


def draw(rng):
    """Draw a program of up to four agents on one or two barriers; most of them are wrong."""
    keys = [(0, "smem", 8 * i) for i in range(rng.randint(1, 2))]
    meet = meeting()
    agents = []
    begin = [Op("init", ((key, rng.randint(1, 3), 0),)) for key in keys]
    for _ in range(rng.randint(1, 3)):
        ops = []
        for _ in range(rng.randint(1, 4)):
            key, chance = rng.choice(keys), rng.random()
            if chance < 0.4:
                ops.append(Op("wait", ((key, 0, 0),), rng.randint(0, 1), 1))
            elif chance < 0.8:
                size = rng.choice([0, 0, 0, 32, 32, 16])
                ops.append(Op("arrive", ((key, rng.choice([1, 1, 1, 2]), size),)))
            elif chance < 0.9:
                ops.append(Op("load", ((key, 0, rng.choice([32, 32, 16])),)))
            elif chance < 0.93:
                ops.append(Op("drop", ((key, 1, 0),)))
            elif chance < 0.96:
                ops.append(Op("expect", ((key, 0, 32),)))
            else:
                ops.append(meet)
        ops *= rng.choice([1, 1, 2])
        for _ in range(rng.choice([1, 1, 2, 3]) if len(agents) < 3 else 1):
            agents.append(SkeletonAgent(0, f"agent{len(agents)}", (*begin, meet, *ops)))
            begin = []
    return agents


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_get_the_verdict_that_all_states_give(seed):
    rng, compared, clean = random.Random(seed), 0, 0
    for _ in range(25):
        agents = draw(rng)
        complete, _, want = judge(agents, 2000, reduce=False, merge=False)
        if not complete:
            continue
        compared += 1
        clean += not want
        for flags in ({}, {"reduce": False}, {"merge": False}):
            complete, _, found = judge(agents, 2000, **flags)
            assert complete
            assert bool(found) == bool(want), (flags, want, found, agents)
            if flags == {"reduce": False}:
                assert found == want or "DEADLOCK" in found & want
    assert compared > 15
    assert clean


def cluster(kind):
    return Op(f"cluster_{kind}", (), 0, 32)


def draw_with_cluster(rng):
    """Draw three agents that meet at the cluster barrier; each in turns, or one of them not."""
    key, meet = (0, "smem", 0), meeting()
    whole = rng.choice([[cluster("sync")], [cluster("arrive"), cluster("wait")]])
    rounds = rng.randint(1, 3)
    agents = []
    for number in range(3):
        ops = [Op("init", ((key, rng.choice([1, 2, 3]), 0),))] if number == 0 else []
        ops.append(meet)
        for _ in range(rounds):
            between = [Op("arrive", ((key, 1, 0),)), Op("wait", ((key, 0, 0),), 0, 1)]
            ops += whole[:1] + rng.sample(between, rng.randint(0, 1)) + whole[1:]
        if rng.random() < 0.2:
            del ops[rng.randrange(1, len(ops))]
        agents.append(SkeletonAgent(0, f"agent{number}", tuple(ops)))
    return agents


@pytest.mark.parametrize("seed", range(8))
def test_random_cluster_barriers_get_the_verdict_that_all_states_give(seed):
    rng, found_any = random.Random(seed), set()
    for _ in range(25):
        agents = draw_with_cluster(rng)
        complete, _, want = judge(agents, 5000, reduce=False, merge=False)
        assert complete
        complete, _, found = judge(agents, 5000)
        assert complete
        assert bool(found) == bool(want), (want, found, agents)
        found_any.add(bool(want))
    assert found_any == {True, False}


def test_agents_that_meet_in_turns_have_one_order():
    rounds = (cluster("arrive"), cluster("wait")) * 6
    complete, states, found = judge([SkeletonAgent(n, f"{n}", rounds) for n in range(16)])
    assert (complete, found) == (True, set())
    assert states <= 2 * 16 * 6 + 1


def test_an_agent_that_arrives_twice_is_seen_in_every_order():
    """Its second arrival may end the generation in place of another's, or begin the next one."""
    right = (cluster("arrive"), cluster("wait"))
    agents = [SkeletonAgent(0, "a", (cluster("arrive"), *right)), SkeletonAgent(1, "b", right)]
    assert not skeleton(agents).system.cluster_alternates
    for flags in ({}, {"reduce": False, "merge": False}):
        assert "NAMED_BAR_MISMATCH" in judge(agents, **flags)[2]
    for ops in ((cluster("wait"),), (*right, replace(cluster("sync"), threads=16))):
        assert not skeleton([SkeletonAgent(0, "a", ops)]).system.cluster_alternates


def test_bytes_that_nobody_expects_are_found():
    # they may come before the arrival, and the phase never ends, or after it
    key = (0, "smem", 0)
    ops = [Op("load", ((key, 0, 32),)), Op("arrive", ((key, 1, 0),)), Op("wait", ((key, 0, 0),))]
    agents = [SkeletonAgent(0, "a", (Op("init", ((key, 1, 0),)), *ops))]
    assert judge(agents)[2] == {"DEADLOCK"}


# -- whole kernels --------------------------------------------------------------------------------


@pytest.mark.parametrize("warps", [8, 16])
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_a_kernel_with_plain_consumer_warps_is_explored(slots, warps):
    program = with_producer("", slots, 9, warps)
    (kernel,) = program.kernels.values()
    report = explore_skeleton(kernel, program.host)
    assert report.verdict == "clean"
    assert report.covers == "CTA (0, 0, 0)"
    assert report.states < 30 * (warps + 1)
    (found,) = explore_skeleton(kernel, program.host, budget_s=0.0).findings
    assert found.rule == "INCOMPLETE"
    assert "raise budget_s" in found.message


@pytest.mark.parametrize(
    "bug", ["empty_wait", "one_full_wait", "one_arrive", "two_arrives", "count", "full_parity"]
)
@pytest.mark.parametrize("warps", [8, 16])
def test_a_broken_ring_of_plain_warps_is_found(bug, warps):
    program = with_producer(bug, 4, 9, warps)
    (kernel,) = program.kernels.values()
    report = explore_skeleton(kernel, program.host)
    assert report.verdict == "error"
    assert report.states < 5000
