"""Rules about last releases and meetings, and what they must not cover."""

import numpy as np
import pytest

from tests.mutants.equivalence import MEETS_MORE, ORDER, reason
from tests.mutants.kernels import subject
from tests.mutants.last_uses import CLUSTER_ARRIVE, CLUSTER_WAIT
from tests.mutants.recording import Operation, record

ALL = tuple(range(32))
FULL, EMPTY = 64, 72


def op(name, lanes=ALL, **operands):
    return Operation(name, lanes, tuple(operands.items()))


def warps(*each):
    return {("k", (0, 0, 0), f"warp{i}"): list(x) for i, x in enumerate(each)}


def init(place, count=1):
    return op("mbarrier_init", (0,), addr=place, count=count)


def arrive(place, name="mbarrier_arrive"):
    return op(name, (0,), addr=place)


def wait(place, phase):
    return op("cuda_mbarrier_wait", **{"0": place, "1": phase & 1, "phase": phase})


STORE, LOAD = op("store", **{"0": 0, "1": 4, "2": 7}), op("load", **{"0": 0, "1": 4})
EXPECT = arrive(FULL, "mbarrier_arrive_expect_tx")
MADE = [init(FULL), init(EMPTY)]


def in_turn(first, second):
    """Return a producer that waits for one release, and consumers that take its two slots."""
    produce = [*MADE, EXPECT, wait(EMPTY, 0), EXPECT]
    return warps(produce, [wait(FULL, 0), LOAD, *first], [wait(FULL, 1), LOAD, *second])


def test_a_release_behind_the_last_wait():
    whole = in_turn([arrive(EMPTY)], [arrive(EMPTY)])
    rule = "a release behind the last wait"
    assert reason(whole, in_turn([arrive(EMPTY)], [])) == rule
    assert reason(whole, in_turn([], [arrive(EMPTY)])) == ""  # the producer waits for that one
    early = in_turn([arrive(EMPTY)], [])
    key = ("k", (0, 0, 0), "warp2")
    unknown = whole | {key: [wait(FULL, 0), LOAD, arrive(EMPTY)]}  # may be the first to arrive
    assert reason(unknown, early | {key: [wait(FULL, 0), LOAD]}) == ""
    another = {("k", (0, 0, 0), "warp3"): [wait(EMPTY, 1)]}  # waits for what is left out
    assert reason(whole | another, early | another) == ""
    shared = {("k", (0, 0, 0), "warp3"): [arrive(FULL)]}  # the phase may end without the producer
    assert reason(whole | shared, early | shared) == ""


def test_a_count_that_nobody_waits_for():
    one, two = ([init(EMPTY, n), LOAD, arrive(EMPTY)] for n in (1, 2))
    assert reason(warps(one), warps(two)) == "a count that nobody waits for"
    waits = [wait(EMPTY, 0)]
    assert reason(warps(one, waits), warps(two, waits)) == ""
    copies = [op("cp_async_bulk_tensor_g2s", (0,), mbar=EMPTY)]
    assert reason(warps(one, copies), warps(two, copies)) == ""


def test_an_arrival_at_a_named_barrier_at_which_nobody_waits():
    more = [LOAD, op("bar_arrive", a=9, b=64)]
    known = "an arrival at a barrier that nobody waits at"
    assert reason(warps([LOAD], [STORE]), warps(more, [STORE])) == known
    waits = [STORE, op("bar_sync", a=9, b=64)]
    assert reason(warps([LOAD], waits), warps(more, waits)) == ""


CLUSTER = [op(CLUSTER_ARRIVE, **{"0": "release"}), op(CLUSTER_WAIT, **{"0": "acquire"})]
BAR = op("bar_sync", a=1, b=64)


@pytest.mark.parametrize(
    ("first", "second", "is_spare"),
    [
        (CLUSTER, CLUSTER, True),
        (CLUSTER, [*CLUSTER, STORE], False),
        (CLUSTER, [CLUSTER[0], STORE, CLUSTER[1]], False),
        (CLUSTER, [], False),
        ([op(CLUSTER_ARRIVE, **{"0": "relaxed"}), CLUSTER[1]], CLUSTER, False),
    ],
)
def test_a_barrier_right_behind_the_cluster_s(first, second, is_spare):
    with_bar = warps([STORE, *first, BAR, LOAD], [STORE, *second, BAR, LOAD])
    without = warps([STORE, *first, LOAD], [STORE, *second, LOAD])
    assert reason(with_bar, without) == ("a barrier right behind the cluster's" * is_spare)


def test_a_barrier_of_some_that_come_there_is_none_right_behind_the_cluster_s():
    wide = op("bar_sync", a=1, b=96)
    before = warps([*CLUSTER, wide, LOAD], [*CLUSTER, wide, LOAD])
    assert reason(before, warps([*CLUSTER, LOAD], [*CLUSTER, LOAD])) == ""


def test_barriers_that_are_added_order_more():
    few, many = warps([STORE, LOAD], [LOAD]), warps([STORE, BAR, LOAD], [BAR, LOAD])
    assert reason(few, many) == MEETS_MORE
    assert reason(many, few) == ""
    half = warps([STORE, BAR, LOAD], [LOAD, op("bar_arrive", a=1, b=64)])
    assert reason(few, half) == ""


def test_a_store_in_front_of_the_arrival_at_the_cluster_s_barrier():
    late, early = [CLUSTER[0], STORE, CLUSTER[1], LOAD], [STORE, *CLUSTER, LOAD]
    assert reason(warps(late), warps(early)) == ORDER
    assert reason(warps(early), warps(late)) == ""


def test_one_warp_stays_for_the_cluster():
    both, one, none = [*CLUSTER], CLUSTER[:1], [STORE]
    assert reason(warps(both, both), warps(both, one)) == "another warp stays for the cluster"
    assert reason(warps(both, both), warps(one, one)) == ""
    assert reason(warps([*both, none[0]], both), warps([*one, none[0]], both)) == ""


def test_what_is_recorded_of_memory_names_its_elements():
    """`element_by_element` reads the number of elements and their width by their places."""
    kernel = subject("pointwise, alone")
    trace = record(kernel.program, kernel.inputs)
    found = {x.name: x for ops in trace.values() for x in ops if x.name in ("load", "store")}
    for name, first in (("load", "2"), ("store", "3")):
        places = [str(int(first) + i) for i in range(3)]
        dtype, count, width = map(found[name].operand, places)
        assert np.dtype(dtype).kind in "fi"
        assert all(isinstance(x, int) for x in (count, width))
