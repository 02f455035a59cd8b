"""Groups that are opened by an instruction, and trips that are peeled off a loop."""

from dataclasses import replace

from tests.sync.words import placed
from tvm_hopper.facts.async_ops import DMA_GROUP
from tvm_hopper.sync import Access, Buffer, Commit, Loop, Open, Step, Wait

RING = Buffer("ring", "vtcm", 3)
OTHER = Buffer("other", "vtcm", 3)
OPEN, COMMIT = Open(DMA_GROUP), Commit(DMA_GROUP)


def copy(ahead: int, ring: Buffer = RING) -> Step:
    return Step("copy", (Access(ring, True, ahead),), "dma_load", "thread")


USE = Step("use", (Access(RING, False),), issuer="thread")
STEADY = Loop("k", (copy(2), USE), frozenset({RING}), min_trips=1)
LAST = Loop("last", (USE,), frozenset({RING}), is_once=True)


def test_a_group_is_opened_behind_what_is_waited_for() -> None:
    assert placed(copy(0), USE, copy(0), USE) == {
        (0,): [OPEN],
        (1,): [COMMIT, Wait(DMA_GROUP)],
        (2,): [OPEN],
        (3,): [COMMIT, Wait(DMA_GROUP)],
    }


def test_neighbors_are_one_group() -> None:
    assert placed(copy(0), copy(0, OTHER), USE)[0,] == [OPEN]
    assert placed(copy(0), copy(0, OTHER), USE)[2,] == [COMMIT, Wait(DMA_GROUP)]


def test_peeled_trips_wait_for_one_group_less_each() -> None:
    found = placed(copy(0), copy(1), STEADY, LAST, LAST)
    assert found[2, 1] == [COMMIT, Wait(DMA_GROUP, 2)]
    assert found[3, 0] == [Wait(DMA_GROUP, 1)]
    assert found[4, 0] == [Wait(DMA_GROUP)]


def test_a_loop_of_any_number_of_trips_waits_for_all() -> None:
    drain = replace(LAST, is_once=False, min_trips=1)
    assert placed(copy(0), copy(1), STEADY, drain)[3, 0] == [Wait(DMA_GROUP)]


def test_one_thread_meets_nobody() -> None:
    body = (copy(0), copy(1), STEADY, LAST, LAST)
    kinds = {type(x) for syncs in placed(*body).values() for x in syncs}
    assert kinds == {Open, Commit, Wait}
