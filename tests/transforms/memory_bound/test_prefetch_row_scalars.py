"""prefetch_row_scalars: what a row has one of is loaded while the row before is computed with."""

from __future__ import annotations

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.memory_bound.prefetch_row_scalars import prefetch_row_scalars

KERNEL = """
def func(X: T.Buffer((1000, 256), "float16"), Q: T.Buffer((1000,), "float32"),
    Y: T.Buffer((1000, 256), "float16")):
    for bx in T.thread_binding(16, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel"):
                for r in T.serial(63, prefetch_rows=2):
                    for v in T.unroll(8):
                        with T.sblock("store", where=r * 16 + bx < 1000 and v + tx < 39):
                            Y[r * 16 + bx, tx * 8 + v] = T.Cast("float16",
                                T.Cast("float32", X[r * 16 + bx, tx * 8 + v]) * Q[r * 16 + bx])
"""


def lines(*changes: tuple[str, str]) -> list[str]:
    return [
        x.strip()
        for x in str(run(parse(KERNEL, *changes), prefetch_row_scalars).script()).split("\n")
    ]


def test_a_value_is_loaded_a_turn_earlier():
    got = lines()
    order = [
        "Q_next[0] = T.float32(0.0)",
        "Q_next[0] = Q[bx]",
        "Q_now[0] = Q_next[0]",
        "if r < 62 and r * 16 + bx < 984:",
        "Q_next[0] = Q[r * 16 + bx + 16]",
    ]
    places = [got.index(x) for x in order]
    assert places == sorted(places)
    assert any("X[r * 16 + bx, tx * 8 + v]) * Q_now[0]" in x for x in got)


@pytest.mark.parametrize(
    "change",
    [
        ("prefetch_rows", "pragma_unroll_explicit"),  # nothing is asked for ahead
        (") * Q[r * 16 + bx]", ") * Q[bx]"),
        (") * Q[r * 16 + bx]", ") * Q[r * 8 + v]"),
        ('memory_bound="row_reduction"', 'chosen="row_reduction"'),
    ],
    ids=range(4),
)
def test_what_stays(change):
    func = parse(KERNEL, change)
    check(run(func, prefetch_row_scalars), func)
