"""What is no program for the sync engine, one refusal a test."""

from __future__ import annotations

import re

import pytest

from tvm_hopper.sync import Access, Branch, Buffer, Loop, Step, place_syncs

TILE, ACC, OUT = Buffer("tile", "shared"), Buffer("acc", "registers"), Buffer("out", "global")
RING = Buffer("ring", "shared", 2)


def refused(message: str, *body) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        place_syncs(body)


def diverging(*arm) -> Branch:
    return Branch((arm, ()), is_uniform=False)


def test_a_buffer_without_slots() -> None:
    with pytest.raises(ValueError, match="found 0 slots; need at least 1"):
        Buffer("ring", "shared", 0)


def test_a_branch_without_arms() -> None:
    with pytest.raises(ValueError, match="found no arm"):
        Branch(())


def test_two_buffers_of_one_name() -> None:
    other = Loop("k", (), frozenset([Buffer("tile", "shared", 2)]))
    arm = Branch(((Step("fill", (Access(TILE, True),)),),))
    refused("two buffers named 'tile'", arm, other)


def test_an_unknown_operation() -> None:
    refused("step 's': found operation 'mma'", Step("s", (), "mma"))


def test_a_release_that_is_an_operation() -> None:
    refused(
        "step 's' (wgmma): found a release that is an operation",
        Step("s", (Access(ACC, True),), "wgmma", is_release=True),
    )


def test_a_release_by_one_thread() -> None:
    step = Step("s", (Access(TILE, False),), issuer="thread", is_release=True)
    refused("step 's': found a release by one thread; need every warp's", step)


@pytest.mark.parametrize(
    "other", [{"op": "tma_load"}, {"is_release": True}, {"issuer": "thread"}], ids=str
)
def test_an_acquire_that_is_something_else(other) -> None:
    step = Step("s", (Access(TILE, True),), is_acquire=True, **other)
    refused("step 's': found an acquire that is something else as well, or one thread's", step)


def test_an_acquire_in_a_branch_that_is_not_uniform() -> None:
    step = Step("s", (Access(TILE, True),), is_acquire=True)
    refused("step 's': found an acquire in a branch that is not uniform", diverging(step))


def test_wgmma_by_one_thread() -> None:
    step = Step("s", (Access(ACC, True),), "wgmma", "thread")
    refused("step 's' (wgmma): found one issuing thread", step)


def test_an_operand_in_another_memory() -> None:
    load = Step("s", (Access(OUT, True),), "tma_load", "thread")
    refused("(tma_load): found a write of 'out' in global; need shared", load)
    mma = Step("s", (Access(OUT, False), Access(ACC, True)), "wgmma")
    refused("(wgmma): found a read of 'out' in global; need registers or shared", mma)


def test_all_threads_at_a_buffer_of_the_elected_one() -> None:
    own = Buffer("own", "shared", by_thread=True)
    refused("step 's': found all threads at a buffer of the", Step("s", (Access(own, False),)))


def test_a_store_of_nothing() -> None:
    step = Step("s", (Access(OUT, True),), "tma_store", "thread")
    refused("(tma_store): found no operand on chip", step)


def test_a_load_to_nowhere() -> None:
    step = Step("s", (Access(OUT, False),), "tma_load", "thread")
    refused("(tma_load): found no destination", step)


def test_a_load_of_two_versions_into_one_slot() -> None:
    message = "step 's' (tma_load): found copies of versions [0, 2] into one slot; need a step for"
    twice = (Access(RING, True, 2), Access(RING, True, 0))
    refused(message, Step("s", twice, "tma_load", "thread"))


def test_what_all_threads_execute_in_a_branch_that_is_not_uniform() -> None:
    release = Step("s", (Access(TILE, False),), is_release=True)
    refused("step 's': found a release in a branch that is not uniform", diverging(release))
    mma = Step("s", (Access(ACC, True),), "wgmma")
    refused("step 's': found wgmma in a branch that is not uniform", diverging(mma))
    load = Step("s", (Access(TILE, True),), "tma_load", "thread")
    nested = diverging(Branch(((load,), ())))
    refused("step 's': found tma_load in a branch that is not uniform", nested)


def test_a_ring_that_is_advanced_in_a_branch_that_is_not_uniform() -> None:
    refused("loop 'k': found a ring that is advanced", diverging(Loop("k", (), frozenset([RING]))))


def test_threads_that_would_meet_in_a_branch_that_is_not_uniform() -> None:
    store = Step("store", (Access(TILE, False),), "tma_store", "thread")
    fill = Step("fill", (Access(TILE, True),))
    read = Step("read", (Access(TILE, False),))
    refused("step 'fill': found a use of what other threads did", diverging(store, fill))
    refused("step 'read': found a use of what other threads did", diverging(fill, read))


# What has to wait for a copy that may not have been made.


def promise(*accesses: Access, op: str | None = "tma_load") -> Step:
    return Step("ahead", accesses, op, "thread", only_if_read=True)


AHEAD = promise(Access(RING, True, 1))


def test_only_if_read_of_what_is_no_copy() -> None:
    refused("step 'ahead': found only_if_read; need an operation", promise(op=None))


def test_only_if_read_of_a_group() -> None:
    refused(
        "step 'ahead' (cp_async): found only_if_read; need an operation that completes on an mba",
        promise(Access(RING, True), op="cp_async"),
    )


def test_only_if_read_with_a_source_that_somebody_may_write() -> None:
    step = promise(Access(OUT, False), Access(RING, True))
    refused("step 'ahead': found only_if_read and 'out', which it copies from", step)


def test_a_promised_copy_s_buffer_is_written_by_others() -> None:
    message = "step 's': found a write of 'ring', whose copies are made only if they are read"
    refused(message, Step("s", (Access(RING, True),)), AHEAD)
    refused(message, AHEAD, Step("s", (Access(RING, True),), "tma_load", "thread"))


def test_a_promised_copy_s_buffer_is_released() -> None:
    release = Step("s", (Access(RING, False),), is_release=True)
    refused("step 's': found a release of 'ring', whose copies", AHEAD, release)


def test_a_version_that_is_older_than_the_ring_is_long() -> None:
    late = Step("s", (Access(RING, False, -2),))
    refused("step 's': found version -2 of 'ring'", Branch(((AHEAD,), (late,))))
    early = Step("s", (Access(RING, False, -1),))
    assert place_syncs((AHEAD, early)) == ()
