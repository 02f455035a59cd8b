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


def test_wgmma_by_one_thread() -> None:
    step = Step("s", (Access(ACC, True),), "wgmma", "thread")
    refused("step 's' (wgmma): found one issuing thread", step)


def test_an_operand_in_another_memory() -> None:
    load = Step("s", (Access(OUT, True),), "tma_load", "thread")
    refused("(tma_load): found a write of 'out' in global; need shared", load)
    mma = Step("s", (Access(OUT, False), Access(ACC, True)), "wgmma")
    refused("(wgmma): found a read of 'out' in global; need registers or shared", mma)


def test_a_store_of_nothing() -> None:
    step = Step("s", (Access(OUT, True),), "tma_store", "thread")
    refused("(tma_store): found no operand on chip", step)


def test_a_load_to_nowhere() -> None:
    step = Step("s", (Access(OUT, False),), "tma_load", "thread")
    refused("(tma_load): found no destination", step)


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
