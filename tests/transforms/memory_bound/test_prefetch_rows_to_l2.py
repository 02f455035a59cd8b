"""prefetch_rows_to_l2: what a later turn loads is on its way to L2."""

from __future__ import annotations

import pytest

from tests.transforms.scripts import parse, run
from tvm_hopper.transforms.memory_bound.prefetch_rows_to_l2 import prefetch_rows_to_l2

KERNEL = """
def func(X: T.Buffer((1000, 256), "float16"), Y: T.Buffer((1000, 256), "float16")):
    for bx in T.thread_binding(16, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((8,), "float16", scope="local")
                for r in T.serial(63, prefetch_rows=2):
                    for v in T.vectorized(8):
                        with T.sblock("load", where=r * 16 + bx < 1000):
                            tile[v] = X[r * 16 + bx, tx * 8 + v]
                    for v in T.vectorized(8):
                        with T.sblock("store", where=r * 16 + bx < 1000):
                            Y[r * 16 + bx, tx * 8 + v] = tile[v]
"""


def text(*changes: tuple[str, str]) -> str:
    return str(run(parse(KERNEL, *changes), prefetch_rows_to_l2).script())


def test_one_thread_asks_for_a_row_that_exists():
    got = text()
    assert got.count('"prefetch"') == 1
    assert "T.address_of(X[r * 16 + bx + 32, 0]), T.uint32(512)" in got
    assert "tx == 0" in got
    assert "r * 16 + bx < 968" in got
    assert "prefetch_rows" not in got


@pytest.mark.parametrize(
    "changes",
    [
        [("(1000, 256)", "(1000, 257)")],  # rows of no multiple of 16 bytes
        [("X[r * 16 + bx,", "X[bx,")],  # the same row in each turn
    ],
)
def test_what_is_not_prefetched(changes):
    assert "prefetch" not in text(*changes)


def test_processors_without_the_instruction_load_as_before():
    import tvm

    func = parse(KERNEL).with_attr("target", tvm.target.Target({"kind": "cuda", "arch": "sm_80"}))
    assert "prefetch" not in str(run(func, prefetch_rows_to_l2).script())
