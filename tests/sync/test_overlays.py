"""Buffers in the same bytes: what stands between the last use of one and the first of another."""

from dataclasses import replace

import pytest

from tests.sync.words import BULK, PROXY_FENCE, A, copy, fill, load, loop, placed, read, store, use
from tvm_hopper.sync import (
    Barrier,
    Branch,
    Buffer,
    Commit,
    Step,
    Wait,
    WaitPhase,
    reads_its_own_copies,
)

RING = Buffer("ring", "shared", 4, frozenset(["staging"]))
STAGING = Buffer("staging", "shared", overlays=frozenset(["ring"]))


def test_threads_meet_before_they_write_what_others_read_under_another_name():
    body = (loop(load(RING), use(RING), advances=[RING], min_trips=1), fill(STAGING), use(STAGING))
    apart = tuple(
        replace(x, accesses=tuple(replace(a, buffer=A) for a in x.accesses)) for x in body[1:]
    )
    assert placed(body[0], *apart)[(2,)] == [Barrier()]
    assert (1,) not in placed(body[0], *apart)
    assert placed(*body)[(1,)] == [Barrier()]
    assert placed(*body)[(2,)] == [Barrier()]


def test_a_copy_into_bytes_that_threads_touched_is_behind_their_fence():
    found = placed(fill(STAGING), use(STAGING), load(RING), use(RING))
    assert found[(2,)] == [PROXY_FENCE, Barrier()]
    assert found[(3,)] == [WaitPhase(RING)]


def test_a_store_in_flight_is_waited_for_before_its_source_is_overwritten_by_another_name():
    found = placed(fill(STAGING), store(STAGING), copy(RING))
    assert found[(2,)] == [Commit(BULK), Wait(BULK, 0, read_only=True), Barrier()]


def test_a_slot_that_is_given_back_is_still_read_by_other_threads():
    """The producer hears of it by their arrivals; who writes under another name does not."""
    slot = Step("release", (read(RING),), is_release=True)
    found = placed(loop(use(RING), slot, advances=[RING], min_trips=1), fill(STAGING))
    assert found[(1,)] == [Barrier()]


# -- what a ring holds in front of a body


@pytest.mark.parametrize(
    ("body", "is_own"),
    [
        ((load(RING), use(RING)), True),
        ((use(RING),), False),
        ((use(RING), load(RING)), False),
        ((load(RING, 1), use(RING)), False),
        ((fill(RING), use(RING)), False),  # it may leave elements as they were
        ((loop(load(RING), use(RING), advances=[RING]),), True),
        ((load(RING), loop(load(RING, 1), use(RING), advances=[RING])), True),
        ((loop(load(RING, 1), use(RING), advances=[RING]),), False),  # the first trip's
        ((load(RING), loop(load(RING, 4), use(RING), advances=[RING])), False),  # one slot too far
        ((loop(load(RING), advances=[]), use(RING)), False),  # of no trip
        ((loop(load(RING), min_trips=1), use(RING)), True),
        ((Branch(((load(RING),), ())), use(RING)), False),
        ((Branch(((load(RING),), (load(RING), load(RING, 1)))), use(RING)), True),
        ((load(A), use(A), loop(use(A))), True),
    ],
)
def test_whether_a_ring_is_read_as_it_is_found(body, is_own):
    assert reads_its_own_copies(body, RING) is is_own
