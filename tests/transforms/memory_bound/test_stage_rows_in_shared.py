"""stage_rows_in_shared: rows of later turns come into shared memory, and are loaded from there."""

from __future__ import annotations

from tests.transforms.scripts import parse, run
from tvm_hopper.transforms.memory_bound.stage_rows_in_shared import stage_rows_in_shared

KERNEL = """
def func(X: T.Buffer((1000, 256), "float16"), Y: T.Buffer((1000, 256), "float16")):
    T.func_attr({"target": T.target("nvidia/nvidia-h200")})
    for bx in T.thread_binding(16, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((4,), "float16", scope="local")
                for r in T.serial(63, stage_rows=2):
                    for v in T.vectorized(4):
                        with T.sblock("load", where=r * 16 + bx < 1000):
                            tile[v] = X[r * 16 + bx, tx * 4 + v]
                    for v in T.vectorized(4):
                        with T.sblock("store", where=r * 16 + bx < 1000):
                            Y[r * 16 + bx, tx * 4 + v] = tile[v]
"""


SYNC = 'T.tvm_storage_sync("shared", T.bool(False), -1)'


def lines(*changes: tuple[str, str]) -> list[str]:
    return [
        x.strip()
        for x in str(run(parse(KERNEL, *changes), stage_rows_in_shared).script()).split("\n")
    ]


def test_rows_come_two_turns_ahead():
    got = lines()
    first = got.index(SYNC)
    loop = next(i for i, x in enumerate(got) if x.startswith("for r in range(63)"))
    start, turn = got[:first], got[loop:]
    assert sum("mbarrier" in x and "init" in x and "fence" not in x for x in start) == 4
    ahead = got[first:loop]
    assert [x for x in ahead if "address_of(X[" in x] != []
    assert any("X[bx, 0]" in x for x in ahead)
    assert any("X[bx + 16, 0]" in x for x in ahead)
    assert any("X[r * 16 + bx + 32, 0]" in x and "T.uint32(512)" in x for x in turn)
    assert any("r < 61" in x and "r * 16 + bx < 968" in x and "tx == 0" in x for x in turn)
    assert any("mbarrier_wait" in x and "r // 4 % 2" in x for x in turn)
    assert "tile[v] = X_rows[r % 4, tx * 4 + v]" in turn
    assert not any("stage_rows" in x for x in got)


def test_threads_meet_where_nothing_lets_them():
    """Without a reduction in the loop a barrier of its own stands behind the loads."""
    assert lines().count(SYNC) == 2


def test_a_part_of_a_row_for_each_thread_block_of_a_cluster():
    got = lines(
        (
            "        for tx in",
            '        for tz in T.thread_binding(2, thread="threadIdx.z"):\n         for tx in',
        ),
        ("T.thread_binding(64", "T.thread_binding(32"),
        ("= X[r * 16 + bx, tx * 4 + v]", "= X[r * 16 + bx, tz * 128 + tx * 4 + v]"),
    )
    assert any("X[r * 16 + bx + 32, tz * 128]" in x and "T.uint32(256)" in x for x in got)
    assert "tile[v] = X_rows[r % 4, tx * 4 + v + tz * 128]" in got


HINTED = (
    "                            tile[v] = X",
    '                            T.sblock_attr({"tvm_hopper.load_hint": "evict_last"})\n'
    "                            tile[v] = X",
)


def test_what_l2_is_told_of_a_row_is_told_by_its_copy():
    got = lines(HINTED)
    assert any("createpolicy" in x and "evict_last" in x for x in got)
    copies = [x for x in got if "address_of(X[" in x]
    assert len(copies) == 3
    assert all("policy[0]" in x and "L2::cache_hint" in x for x in copies)
    assert not any("load_hint" in x for x in got)
    assert not any("policy" in x for x in lines())


def test_without_bulk_copies_the_hint_stays_with_the_loads():
    got = lines(HINTED, ("nvidia/nvidia-h200", "nvidia/nvidia-a100"))
    assert any("load_hint" in x for x in got)


def test_skewed_turns_have_a_room_more():
    asked = ("stage_rows=2", "stage_rows=2, skew_turns=1")
    assert any("mbarrier_wait" in x and "r // 5 % 2" in x for x in lines(asked))


def test_without_bulk_copies_rows_are_loaded_as_before():
    got = lines(("nvidia/nvidia-h200", "nvidia/nvidia-a100"))
    assert any("tile[v] = X[r * 16 + bx" in x for x in got)
    assert not any("stage_rows" in x or "mbarrier" in x for x in got)
