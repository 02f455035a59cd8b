"""Exact placements for rings that are filled ahead, as long as there is a trip that reads."""

from __future__ import annotations

import pytest

from tests.sync.words import (
    ACC,
    MMA_FENCE,
    PROXY_FENCE,
    RING,
    WGMMA,
    A,
    loop,
    mma,
    placed,
    use,
    write,
)
from tvm_hopper.sync import Barrier, Body, Branch, Buffer, Commit, Step, Wait, WaitPhase

# Rings that are filled ahead by their readers, as long as there is a trip that reads.


def promise(buffer: Buffer, *versions: int) -> Step:
    accesses = tuple(write(buffer, version) for version in versions)
    return Step("load", accesses, "tma_load", "thread", only_if_read=True)


def expanded(*uses: Step, front: tuple[int, ...] = (0, 1, 2)) -> Body:
    """Return a ring of four slots without roles: copies in front of a loop, and three ahead."""
    return (promise(RING, *front), loop(promise(RING, 3), *uses, advances=[RING]))


GENERIC_READERS = {
    (1, 0): [PROXY_FENCE, Barrier()],  # the slot was read in the trip before
    (1, 1): [WaitPhase(RING, 0)],
}


def test_a_promised_copy_is_waited_for_by_its_readers_alone() -> None:
    assert placed(*expanded(use(RING))) == GENERIC_READERS


def test_a_step_may_promise_one_copy_or_several() -> None:
    one_by_one = (*(promise(RING, ahead) for ahead in range(3)), expanded(use(RING))[1])
    assert placed(*one_by_one) == {(2 + at[0], *at[1:]): x for at, x in GENERIC_READERS.items()}


@pytest.mark.parametrize("front", [(0,), (0, 1)])
def test_fewer_copies_in_front_than_slots_change_nothing(front: tuple[int, ...]) -> None:
    """There are as many trips then, and none reads what nobody copied."""
    assert placed(*expanded(use(RING), front=front)) == GENERIC_READERS


def test_a_promised_copy_that_wgmma_reads() -> None:
    assert placed(*expanded(mma(ACC, RING), use(ACC))) == {
        (1, 0): [Barrier()],  # all have waited for the trip before
        (1, 1): [WaitPhase(RING, 0), MMA_FENCE],
        (1, 2): [Commit(WGMMA), Wait(WGMMA)],
    }


def test_a_promised_copy_waits_for_the_product_that_reads_the_slot() -> None:
    assert placed(*expanded(mma(ACC, RING))) == {
        (1, 0): [Wait(WGMMA), Barrier()],
        (1, 1): [WaitPhase(RING, 0), MMA_FENCE],
        (1, 2): [Commit(WGMMA)],
        (2,): [Wait(WGMMA)],
    }


def test_one_slot_more_than_copies_ahead_leaves_a_product_in_flight() -> None:
    body = (promise(RING, 0, 1), loop(promise(RING, 2), mma(ACC, RING), advances=[RING]))
    assert placed(*body)[1, 0] == [Wait(WGMMA, num_pending=1), Barrier()]


def test_readers_first_meet_at_the_copy_of_the_same_trip() -> None:
    body = (promise(RING, 0, 1, 2), loop(use(RING), promise(RING, 4), advances=[RING]))
    assert placed(*body) == {(1, 0): [WaitPhase(RING, 0)], (1, 1): [PROXY_FENCE, Barrier()]}


def test_the_next_tile_s_first_copies_overwrite_what_was_read_in_front_of_the_last_barrier() -> (
    None
):
    within = {(0, *at): syncs for at, syncs in GENERIC_READERS.items()}
    assert placed(loop(*expanded(use(RING)))) == within
    # The slots that are one too many for that were read behind it.
    assert placed(loop(*expanded(use(RING), front=(0, 1, 2, 3)))) == {
        (0, 0): [PROXY_FENCE, Barrier()],
        **within,
    }


def test_the_next_tile_s_first_copies_come_behind_the_last_tile_s_products() -> None:
    assert placed(loop(*expanded(mma(ACC, RING)), use(ACC))) == {
        (0, 1, 0): [Wait(WGMMA), Barrier()],
        (0, 1, 1): [WaitPhase(RING, 0), MMA_FENCE],
        (0, 1, 2): [Commit(WGMMA)],
        (0, 2): [Wait(WGMMA)],
    }


def test_two_rings_in_one_loop_meet_once() -> None:
    far = Buffer("far", "shared", 3)
    front = (promise(RING, 0, 1, 2), promise(far, 0, 1))
    copies = (promise(RING, 3), promise(far, 2))
    assert placed(*front, loop(*copies, use(RING, far), advances=[RING, far])) == {
        (2, 0): [PROXY_FENCE, Barrier()],
        (2, 2): [WaitPhase(far, 0), WaitPhase(RING, 0)],
    }


def test_two_rings_with_readers_of_their_own() -> None:
    far = Buffer("far", "shared", 3)
    front = (promise(RING, 0, 1, 2), promise(far, 0, 1))
    body = (promise(RING, 3), use(RING), promise(far, 2), use(far))
    assert placed(*front, loop(*body, advances=[RING, far])) == {
        (2, 0): [PROXY_FENCE, Barrier()],
        (2, 1): [WaitPhase(RING, 0)],
        (2, 3): [WaitPhase(far, 0)],  # behind the barrier of this trip, with the fence in it
    }


def test_nobody_waits_for_a_promised_copy_in_front_of_an_arm_that_does_not_read_it() -> None:
    """The branch of plain steps is no unit: the other arm would wait for what was not copied."""
    branch = Branch(((use(RING),), ()))
    assert placed(*expanded(branch)) == {
        (1, 0): [PROXY_FENCE, Barrier()],
        (1, 1, 0, 0): [WaitPhase(RING, 0)],
    }
    both = Branch(((use(RING),), (use(RING, A),)))
    assert placed(*expanded(both)) == GENERIC_READERS


def test_nobody_waits_for_a_promised_copy_in_front_of_a_loop_that_may_make_no_trip() -> None:
    assert placed(promise(RING, 0), loop(use(RING))) == {(1, 0): [WaitPhase(RING, 0)]}
    assert placed(promise(RING, 0), loop(use(RING), min_trips=1)) == {(1,): [WaitPhase(RING, 0)]}
