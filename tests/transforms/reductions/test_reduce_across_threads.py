"""ReduceAcrossThreads: shuffles, and one barrier where a row has several warps."""

from __future__ import annotations

import pytest

from tests.transforms.scripts import parse, run
from tvm_hopper.transforms.reductions.reduce_across_threads import ReduceAcrossThreads

KERNEL = """
def func(Y: T.Buffer((8, ROWS), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction"):
        for ty in T.thread_binding(ROWS, thread="threadIdx.y"):
            for tx in T.thread_binding(COUNT, thread="threadIdx.x"):
                with T.sblock("kernel"):
                    own = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    total = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    BODY
"""
REDUCE = """\
with T.sblock("cross"):
                        T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]), "reduce_scope",
                            0)
                        T.tvm_thread_allreduce(
                            T.uint32(1), own[0], T.bool(True), total[0], tx
                        )"""


def before(count: int, rows: int = 1, body: str = REDUCE):
    return parse(KERNEL, ("BODY", body), ("COUNT", str(count)), ("ROWS", str(rows)))


def lowered(count: int, rows: int = 1, body: str = REDUCE) -> str:
    return str(run(before(count, rows, body), ReduceAcrossThreads()).script())


def distances(text: str) -> list[int]:
    lines = [x for x in text.splitlines() if "tvm_warp_shuffle_xor" in x]
    return [int(x.split("total[0], ")[-1].split(",")[0]) for x in lines]


def test_a_warp_needs_no_shared_memory():
    text = lowered(32)
    assert distances(text) == [16, 8, 4, 2, 1]
    assert "shared" not in text


def test_a_part_of_a_warp_combines_its_own():
    assert distances(lowered(8, 4)) == [4, 2, 1]


def test_one_thread_has_the_row_already():
    assert distances(lowered(1, 32)) == []


def test_several_warps_meet_once():
    text = lowered(512)
    assert distances(text) == [16, 8, 4, 2, 1, 8, 4, 2, 1]
    assert text.count("tvm_storage_sync") == 1
    assert "(1, 1, 16)" in text
    assert "if_then_else" not in text


@pytest.mark.parametrize("warps", [4, 8])
def test_what_few_warps_leave_each_thread_takes_whole(warps):
    text = lowered(32 * warps)
    assert distances(text) == [16, 8, 4, 2, 1]
    assert text.count("tvm_storage_sync") == 1
    assert text.count("T.vectorized(4)") == 1
    assert f"T.unroll({warps // 4})" in text or warps == 4
    assert "total[0] = taken[0] + taken[1]" in text


def test_lanes_behind_the_last_warp_add_nothing():
    text = lowered(96)
    assert distances(text) == [16, 8, 4, 2, 1, 2, 1]
    assert "T.if_then_else(tx % 32 % 4 < 3, of_warps[0, ty, tx % 32 % 4], T.float32(0.0))" in text


def test_rows_of_a_thread_block_have_room_of_their_own():
    text = lowered(64, 4)
    assert "(1, 4, 2)" in text
    assert "of_warps[0, ty, tx // 32] = total[0]" in text


def test_reductions_do_not_wait_for_one_another():
    text = lowered(64, 1, f"{REDUCE}\n                    {REDUCE}")
    assert "(2, 1, 2)" in text
    assert text.count("tvm_storage_sync") == 2
    assert "of_warps[1, ty, tx // 32]" in text


def test_a_pair_is_taken_before_it_is_changed():
    pair = """\
with T.sblock("cross"):
                        T.attr(T.comm_reducer(lambda x, y, u, v: (x + u, y + v + x * u),
                            [T.float32(0)] * 2), "reduce_scope", 0)
                        T.tvm_thread_allreduce(
                            T.uint32(2), own[0], own[0], T.bool(True), total[0], total[0], tx
                        )"""
    text = lowered(2, 16, pair)
    first_store = text.index("total[0] = own_1 + other")
    assert text.count("tvm_warp_shuffle_xor") == 2
    assert text.rindex("tvm_warp_shuffle_xor") < first_store


ROWS = """\
for r in T.serial(9):
                        with T.sblock("cross"):
                            T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]),
                                "reduce_scope", 0)
                            T.tvm_thread_allreduce(
                                T.uint32(1), own[0], T.bool(True), total[0], tx
                            )"""


def test_alone_in_a_loop_it_has_two_rooms_by_turns():
    text = lowered(64, 1, ROWS)
    assert "(2, 1, 2)" in text
    assert text.count("tvm_storage_sync") == 1
    assert "of_warps[r % 2, ty, tx // 32]" in text
