"""Exact placements, one situation a test."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import tvm_hopper.sync
from tests.sync.words import (
    ACC,
    ACC2,
    BULK,
    CP_ASYNC,
    MMA_FENCE,
    PROXY_FENCE,
    RING,
    STAGING,
    WGMMA,
    A,
    B,
    C,
    copy,
    fill,
    load,
    loop,
    mma,
    placed,
    read,
    release,
    store,
    use,
    write,
)
from tvm_hopper.facts.async_ops import ASYNC_OPS, WAIT_GROUP
from tvm_hopper.sync import (
    Barrier,
    Body,
    Branch,
    Buffer,
    Commit,
    Step,
    Sync,
    Wait,
    WaitPhase,
    place_syncs,
)

# The cases of NVIDIA/Fuser#3843: one wait before the first consumer flushes the pipeline.


def test_two_matmuls_each_with_its_own_consumer() -> None:
    body = (loop(mma(ACC, A)), loop(mma(ACC2, A)), use(ACC), use(ACC2))
    assert placed(*body) == {
        (0, 0): [MMA_FENCE],
        (0, 1): [Commit(WGMMA)],
        (1, 0): [MMA_FENCE],
        (1, 1): [Commit(WGMMA)],
        (2,): [Wait(WGMMA)],  # the second loop may make no trip
    }


def test_a_younger_group_of_another_matmul_stays_in_flight() -> None:
    body = (mma(ACC, A), loop(mma(ACC2, A), min_trips=1), use(ACC), use(ACC2))
    found = placed(*body)
    assert found[2,] == [Wait(WGMMA, num_pending=1)]
    assert found[3,] == [Wait(WGMMA)]


def test_two_matmuls_in_one_loop_with_two_consumers() -> None:
    body = (loop(mma(ACC, A), mma(ACC2, A)), use(ACC), use(ACC2))
    assert placed(*body) == {
        (0, 0): [MMA_FENCE],
        (0, 2): [Commit(WGMMA)],
        (1,): [Wait(WGMMA)],
    }


def test_one_matmul_with_a_chained_epilogue() -> None:
    relu = Step("relu", (read(ACC), write(ACC2)))
    body = (loop(mma(ACC, A)), relu, use(ACC2), use(ACC))
    assert placed(*body) == {
        (0, 0): [MMA_FENCE],
        (0, 1): [Commit(WGMMA)],
        (1,): [Wait(WGMMA)],
    }


# Loops and branches.


def test_a_use_in_the_next_trip_waits_there() -> None:
    assert placed(loop(Step("use", (read(ACC), write(C))), mma(ACC, A))) == {
        (0, 0): [Wait(WGMMA)],
        (0, 1): [MMA_FENCE],
        (0, 2): [Commit(WGMMA)],
        (1,): [Wait(WGMMA)],
    }


def test_a_loop_of_plain_steps_is_waited_for_in_front() -> None:
    body = (mma(ACC, A), loop(use(ACC), Branch(((use(ACC),), ()))))
    assert placed(*body) == {(0,): [MMA_FENCE], (1,): [Commit(WGMMA), Wait(WGMMA)]}


def test_an_operation_in_one_arm_is_waited_for_behind_the_join() -> None:
    assert placed(Branch(((mma(ACC, A),), ())), use(ACC)) == {
        (0, 0, 0): [MMA_FENCE],
        (0, 0, 1): [Commit(WGMMA)],
        (1,): [Wait(WGMMA)],
    }


def test_an_operation_in_both_arms_counts_the_fewest_groups() -> None:
    young = Branch(((mma(ACC2, A),), (mma(ACC2, A), use(B), mma(ACC2, A))))
    found = placed(mma(ACC, A), young, use(ACC))
    assert found[2,] == [Wait(WGMMA, num_pending=1)]
    assert found[3,] == [Wait(WGMMA)]


def test_a_use_in_one_arm_is_waited_for_in_that_arm() -> None:
    body = (mma(ACC, A), Branch(((use(ACC), mma(ACC, A)), ())), use(ACC))
    assert placed(*body) == {
        (0,): [MMA_FENCE],
        (1,): [Commit(WGMMA)],
        (1, 0, 0): [Wait(WGMMA)],
        (1, 0, 1): [MMA_FENCE],
        (1, 0, 2): [Commit(WGMMA)],
        (2,): [Wait(WGMMA)],
    }


def test_a_copy_in_one_arm_is_waited_for_there_since_its_phase_is_opened_there_alone() -> None:
    assert placed(Branch(((load(A),), (fill(A),))), use(A)) == {
        (0, 0, 1): [WaitPhase(A)],
        (1,): [Barrier()],
    }


def test_a_copy_in_both_arms_is_waited_for_behind_the_join() -> None:
    assert placed(Branch(((load(A),), (load(A),))), use(A)) == {(1,): [WaitPhase(A)]}


def test_a_second_wait_for_a_version_is_not_placed() -> None:
    assert placed(load(A), use(A), loop(use(A), mma(ACC, A))) == {
        (1,): [WaitPhase(A)],
        (2, 1): [MMA_FENCE],
        (2, 2): [Commit(WGMMA)],
        (3,): [Wait(WGMMA)],
    }


def test_a_copy_from_outside_of_a_loop_is_waited_for_once_in_front_of_it() -> None:
    reader = loop(mma(ACC, A), use(ACC))
    for body, front in ((reader, (1,)), (loop(reader), (1,)), (Branch(((reader,), ())), (1,))):
        waits = {path for path, syncs in placed(load(A), body).items() if WaitPhase(A) in syncs}
        assert front in waits
        assert not any(len(path) > len(front) for path in waits)


def test_a_copy_that_a_loop_issues_or_turns_on_is_waited_for_in_it() -> None:
    again = placed(load(A), loop(mma(ACC, A), use(ACC), load(A)))
    assert WaitPhase(A) in again[1, 0] or WaitPhase(A) in again[1, 3]
    turned = placed(load(RING), loop(mma(ACC, RING), use(ACC), load(RING, 1), advances=[RING]))
    assert any(WaitPhase(RING) in turned.get((1, n), ()) for n in range(4))


@pytest.mark.parametrize(("min_trips", "path"), [(0, (1, 0)), (1, (1,))])
def test_a_promised_copy_is_waited_for_where_it_is_read_for_sure(min_trips, path) -> None:
    """Without a trip nothing reads it, and then nobody made it."""
    promised = replace(load(A), only_if_read=True)
    got = placed(promised, loop(mma(ACC, A), use(ACC), min_trips=min_trips))
    assert [at for at, syncs in got.items() if WaitPhase(A) in syncs] == [path]


# Stores.


def test_a_staging_tile_is_written_again_once_the_store_has_read_it() -> None:
    assert placed(loop(fill(A), store(A))) == {
        (0, 0): [Wait(BULK, read_only=True), Barrier()],
        (0, 1): [PROXY_FENCE, Barrier()],
        (0, 2): [Commit(BULK)],
        (1,): [Wait(BULK, read_only=True)],
    }


def test_two_staging_tiles_leave_one_store_in_flight() -> None:
    assert placed(loop(fill(STAGING), store(STAGING), advances=[STAGING])) == {
        # The barrier of the trip before stands in front of the wait, and announces nothing of it.
        (0, 0): [Wait(BULK, num_pending=1, read_only=True), Barrier()],
        (0, 1): [PROXY_FENCE, Barrier()],
        (0, 2): [Commit(BULK)],
        (1,): [Wait(BULK, read_only=True)],
    }


def test_the_elected_thread_knows_what_it_stored() -> None:
    assert placed(load(A), store(A), load(A), use(A)) == {
        (1,): [WaitPhase(A)],
        (2,): [Commit(BULK), Wait(BULK, read_only=True), Barrier()],  # every thread has waited
        (3,): [WaitPhase(A)],
    }


def test_the_elected_thread_alone_waits_for_what_it_alone_touches() -> None:
    ring = Buffer("ring", "shared", 2, by_thread=True)
    body = loop(load(ring, 1), store(ring), advances=[ring])
    found = placed(load(ring), body)
    assert WaitPhase(ring) in found[(1, 1)]
    assert not [x for syncs in found.values() for x in syncs if isinstance(x, Barrier)]
    plain = placed(load(RING), loop(load(RING, 1), store(RING), advances=[RING]))
    assert Barrier() in plain[(1, 0)]  # or a thread that comes late waits for another phase


def test_the_result_of_a_store_needs_the_full_wait() -> None:
    assert placed(store(A, C), use(C)) == {(1,): [Commit(BULK), Wait(BULK), Barrier()]}


def test_reductions_into_one_result_are_not_ordered() -> None:
    add = Step("add", (read(A), write(C)), "tma_reduce", "thread")
    assert placed(loop(add)) == {(0, 1): [Commit(BULK)], (1,): [Wait(BULK, read_only=True)]}
    assert placed(loop(store(A, C)))[0, 0] == [Wait(BULK)]


# Several kinds in flight.


def test_two_kinds_in_flight_are_waited_for_where_each_is_used() -> None:
    assert placed(mma(ACC, A), store(B), use(ACC), fill(B)) == {
        (0,): [MMA_FENCE],
        (1,): [Commit(WGMMA)],
        (2,): [Commit(BULK), Wait(WGMMA)],
        (3,): [Wait(BULK, read_only=True), Barrier()],
    }


def test_one_place_waits_once_for_each_kind() -> None:
    both = Step("both", (write(A), read(ACC), write(B)))
    assert placed(mma(ACC, A), store(B), both)[2,] == [
        Commit(BULK),
        Wait(BULK, read_only=True),
        Wait(WGMMA),
        Barrier(),
    ]


# Rings.


def pipelined(compute: Step) -> Body:
    """Return a ring of four slots that is filled three trips ahead, without roles."""
    loads = tuple(load(RING, ahead) for ahead in range(3))
    drain = tuple(
        replace(compute, accesses=(read(RING, ahead), *compute.accesses[1:])) for ahead in range(3)
    )
    return (*loads, loop(load(RING, 3), compute, advances=[RING]), *drain)


def test_a_ring_with_generic_readers() -> None:
    assert placed(*pipelined(use(RING))) == {
        (3, 0): [PROXY_FENCE, Barrier()],  # the slot was read in the trip before
        (3, 1): [WaitPhase(RING, 0)],
        (4,): [WaitPhase(RING, 0)],
        (5,): [WaitPhase(RING, 1)],
        (6,): [WaitPhase(RING, 2)],
    }


def test_a_ring_with_wgmma_readers() -> None:
    found = placed(*pipelined(mma(ACC, RING)))
    assert found[3, 0] == [Wait(WGMMA), Barrier()]
    assert found[3, 1] == [WaitPhase(RING, 0), MMA_FENCE]
    assert found[3, 2] == [Commit(WGMMA)]
    # Each of the last three products begins once its own operand is there.
    assert found[4,] == [WaitPhase(RING, 0), MMA_FENCE]
    for ahead in (1, 2):
        assert found[4 + ahead,] == [Commit(WGMMA), WaitPhase(RING, ahead), MMA_FENCE]
    assert found[7,] == [Commit(WGMMA), Wait(WGMMA)]
    assert len(found) == 7


@pytest.mark.parametrize(("ahead", "pending"), [(-1, 1), (0, 0)])
def test_products_of_two_iterations_are_two_groups(ahead: int, pending: int) -> None:
    """The one of the iteration before multiplies while threads compute on the other's sum."""
    values = Buffer("values", "shared", 4)
    late = Step("late", (read(values, ahead), read(ACC2), write(ACC2)), "wgmma")
    body = loop(mma(ACC, RING), late, use(ACC), use(ACC2), advances=[RING, values])
    found = placed(body)
    assert found[0, 2][0] == Commit(WGMMA)
    assert found[0, 2][1:] == [Wait(WGMMA, num_pending=pending)]
    assert found.get((0, 1), [None])[0] == (Commit(WGMMA) if pending else None)
    assert (found.get((0, 3)) == [Wait(WGMMA)]) == bool(pending)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_consumer_releases_after_the_group_that_reads_its_version(lag: int) -> None:
    body = (loop(mma(ACC, RING), release(-lag), advances=[RING]), use(ACC))
    drain = {(1,): [Wait(WGMMA)]} if lag else {}
    assert placed(*body) == {
        (0, 0): [MMA_FENCE],
        (0, 1): [Commit(WGMMA), Wait(WGMMA, num_pending=lag)],
        **drain,
    }


def test_a_generic_consumer_fences_before_it_releases() -> None:
    assert placed(loop(use(RING), release(0), advances=[RING])) == {(0, 1): [PROXY_FENCE]}


def test_generic_writes_are_fenced_and_announced_before_a_bulk_store() -> None:
    assert placed(fill(A), store(A)) == {
        (1,): [PROXY_FENCE, Barrier()],
        (2,): [Commit(BULK), Wait(BULK, read_only=True)],
    }


def test_a_barrier_that_stands_already_is_not_placed_again() -> None:
    # The issuer's own fence behind the barrier is as good as the writers' in front of it.
    assert placed(fill(A), use(A), store(A))[2,] == [PROXY_FENCE]


def test_a_ring_of_cp_async() -> None:
    ring = Buffer("ring", "shared", 3)
    copies = (copy(ring, 0), use(B), copy(ring, 1))
    body = (*copies, loop(use(ring), copy(ring, 2), advances=[ring]))
    assert placed(*body) == {
        (1,): [Commit(CP_ASYNC)],
        (3,): [Commit(CP_ASYNC)],
        (3, 0): [Wait(CP_ASYNC, num_pending=1), Barrier()],
        (3, 2): [Commit(CP_ASYNC)],
        (4,): [Wait(CP_ASYNC)],
    }


def test_a_ring_of_cp_async_that_is_filled_before_it_is_read_meets_twice_a_trip() -> None:
    ring = Buffer("ring", "shared", 3)
    copies = (copy(ring, 0), use(B), copy(ring, 1))
    found = placed(*copies, loop(copy(ring, 2), use(ring), advances=[ring]))
    assert found[3, 0] == [Barrier()]  # the slot was read in the trip before
    assert found[3, 1] == [Commit(CP_ASYNC), Wait(CP_ASYNC, num_pending=2), Barrier()]


def test_copies_for_different_trips_are_groups_of_their_own_where_a_wait_tells_them_apart() -> None:
    reads = [Step(f"use{ahead}", (read(RING, ahead), write(C))) for ahead in (0, 1)]
    found = placed(copy(RING), copy(RING, 1), *reads)
    assert found == {
        (1,): [Commit(CP_ASYNC)],
        (2,): [Commit(CP_ASYNC), Wait(CP_ASYNC, num_pending=1), Barrier()],
        (3,): [Wait(CP_ASYNC), Barrier()],
    }


def test_copies_for_different_trips_are_one_group_where_they_are_waited_for_at_once() -> None:
    both = Step("use", (read(RING), read(RING, 1), write(C)))
    assert placed(copy(RING), copy(RING, 1), both) == {
        (2,): [Commit(CP_ASYNC), Wait(CP_ASYNC), Barrier()],
    }


def test_wgmma_reads_what_cp_async_wrote_behind_a_proxy_fence() -> None:
    assert placed(copy(A), mma(ACC, A))[1,] == [
        Commit(CP_ASYNC),
        Wait(CP_ASYNC),
        PROXY_FENCE,
        Barrier(),
        MMA_FENCE,
    ]


def arrive(buffer: Buffer, ahead: int = 0) -> Step:
    return Step("copy", (write(buffer, ahead),), "cp_async_arrive")


def acquire(buffer: Buffer) -> Step:
    return Step("acquire", (write(buffer),), is_acquire=True)


def test_wgmma_reads_what_threads_arrived_for_behind_a_wait_of_all_and_a_proxy_fence() -> None:
    assert placed(arrive(A), mma(ACC, A)) == {
        (1,): [WaitPhase(A), PROXY_FENCE, MMA_FENCE],
        (2,): [Commit(WGMMA), Wait(WGMMA)],
    }


def test_plain_loads_read_it_behind_the_wait_alone() -> None:
    ring = Buffer("ring", "shared", 2)
    assert placed(loop(arrive(ring), use(ring), advances=[ring])) == {
        (0, 0): [Barrier()],  # of all that read the slot two trips ago
        (0, 1): [WaitPhase(ring)],
    }


HANDED = Buffer("handed", "shared", 2, proxy="generic")
HANDED_BY_TMA = Buffer("handed", "shared", 2)


def hand_over(ring: Buffer, *uses: Step) -> dict[tuple[int, ...], list[Sync]]:
    """Return what is placed in a loop that takes a ring's slots over and gives them back."""
    back = Step("release", (read(ring),), is_release=True)
    return placed(loop(acquire(ring), *uses, back, advances=[ring]))


def test_what_another_agent_wrote_by_cp_async_is_fenced_in_front_of_wgmma() -> None:
    assert hand_over(HANDED, mma(ACC, HANDED)) == {
        (0, 1): [PROXY_FENCE, MMA_FENCE],
        (0, 2): [Commit(WGMMA), Wait(WGMMA)],
    }


def test_what_it_copied_by_tma_is_not() -> None:
    assert hand_over(HANDED_BY_TMA, mma(ACC, HANDED_BY_TMA)) == {
        (0, 1): [MMA_FENCE],
        (0, 2): [Commit(WGMMA), Wait(WGMMA)],
    }


def test_a_store_of_it_by_one_thread_is_fenced_too() -> None:
    assert hand_over(HANDED, store(HANDED))[0, 1] == [PROXY_FENCE]


def test_who_fills_a_slot_by_cp_async_needs_no_fence_from_those_who_loaded_from_it() -> None:
    assert hand_over(HANDED, use(HANDED)) == {}
    assert hand_over(HANDED_BY_TMA, use(HANDED_BY_TMA)) == {(0, 2): [PROXY_FENCE]}


# Threads.


def test_plain_steps_meet_between_a_write_and_a_read_of_shared_memory_only() -> None:
    assert placed(fill(A), use(A), fill(C), use(C), fill(ACC), use(ACC)) == {(1,): [Barrier()]}


def test_a_barrier_is_hoisted_out_of_a_branch_that_is_not_uniform() -> None:
    branch = Branch(((use(B), store(A)), ()), is_uniform=False)
    assert placed(fill(A), branch) == {
        (1,): [PROXY_FENCE, Barrier()],
        (1, 0, 2): [Commit(BULK)],
        (2,): [Wait(BULK, read_only=True)],
    }


def test_a_group_that_is_read_in_a_branch_that_is_not_uniform_is_waited_for_in_front() -> None:
    branch = Branch(((copy(B), use(A)), ()), is_uniform=False)
    found = placed(copy(A), branch)
    assert found[1,] == [Commit(CP_ASYNC), Wait(CP_ASYNC), Barrier()]
    assert found[1, 0, 1] == [Commit(CP_ASYNC)]


def test_a_phase_is_waited_for_in_front_of_a_branch_that_is_not_uniform() -> None:
    """Those that take the other arm wait at the end, which would be twice for the others."""
    branch = Branch(((copy(RING), use(A, B)), ()), is_uniform=False)
    found = placed(load(A), fill(B), branch)
    assert found[2,] == [WaitPhase(A), Barrier()]
    assert found[2, 0, 1] == [Commit(CP_ASYNC)]
    assert [x for syncs in found.values() for x in syncs].count(WaitPhase(A)) == 1


# The table decides.


def test_the_table_is_asked() -> None:
    changed = replace(
        ASYNC_OPS["tma_store"], overwrite_needs=WAIT_GROUP, ordered_after_program=False
    )
    (fence, _, wait) = place_syncs((store(A),), {"tma_store": changed})
    assert (fence.sync, wait.sync) == (MMA_FENCE, Wait(BULK))


def test_only_the_facts_are_imported() -> None:
    for path in Path(tvm_hopper.sync.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                assert not node.module.startswith(("tvm.", "tirx")), path
                if node.module.startswith("tvm_hopper"):
                    assert node.module.startswith("tvm_hopper.facts"), path
