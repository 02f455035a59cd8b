"""FuseOnlineSoftmax: exponentials are summed in the pass that finds the greatest element."""

from __future__ import annotations

import pytest

from tests.transforms.scripts import check, check_other_kernel_stays, notes_of, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.common.explain_notes import RemarkNote
from tvm_hopper.transforms.memory_bound.fuse_online_softmax import (
    FuseOnlineSoftmax,
    plan_online_sums,
)

KERNEL = """
def func(X: T.Buffer((8, 256), "float16"), Y: T.Buffer((8,), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel"):
                M = T.sblock_alloc_buffer((1,), scope="local")
                S = T.sblock_alloc_buffer((1,), scope="local")
                with T.sblock("most"):
                    own = T.sblock_alloc_buffer((1,), scope="local")
                    with T.sblock("init"):
                        own[0] = T.float32(-4)
                    for part in range(4):
                        with T.sblock("part"):
                            tile = T.sblock_alloc_buffer((2,), "float16", scope="local")
                            for v in T.vectorized(2):
                                with T.sblock("load"):
                                    tile[v] = X[bx, part * 64 + tx * 2 + v]
                            for v in T.unroll(2):
                                with T.sblock("update"):
                                    own[0] = T.max(own[0], T.Cast("float32", tile[v]))
                    with T.sblock("across"):
                        T.attr(0, "reduce_scope", 0)
                        T.evaluate(own[0])
                    with T.sblock("back"):
                        M[0] = own[0]
                with T.sblock("sums"):
                    total = T.sblock_alloc_buffer((1,), scope="local")
                    with T.sblock("init"):
                        total[0] = T.float32(0)
                    for part in range(4):
                        with T.sblock("part"):
                            again = T.sblock_alloc_buffer((2,), "float16", scope="local")
                            for v in T.vectorized(2):
                                with T.sblock("load"):
                                    again[v] = X[bx, part * 64 + tx * 2 + v]
                            for v in T.unroll(2):
                                with T.sblock("update"):
                                    total[0] = total[0] + T.exp(T.Cast("float32", again[v]) - M[0])
                    with T.sblock("across"):
                        T.attr(0, "reduce_scope", 0)
                        T.evaluate(total[0])
                    with T.sblock("back"):
                        S[0] = total[0]
                with T.sblock("store", where=tx < 1):
                    Y[bx] = T.log(S[0]) + M[0]
"""


def text(func) -> list[str]:
    return [line.strip() for line in str(func.script()).splitlines()]


def test_one_loop_is_left():
    got = text(run(parse(KERNEL), FuseOnlineSoftmax()))
    assert sum(line.startswith("for part in") for line in got) == 1
    assert sum("X[bx, part" in line and " = " in line for line in got) == 1
    order = [
        "own[0] = T.float32(-4.0)",
        "total[0] = T.float32(0.0)",
        "before[0] = own[0]",
        'own[0] = T.max(own[0], T.Cast("float32", tile[v]))',
        "total[0] = total[0] * T.exp(before[0] - own[0])",
        'total[0] = total[0] + T.exp(T.Cast("float32", tile[v]) - own[0])',
        "M[0] = own[0]",
        "total[0] = total[0] * T.exp(own[0] - M[0])",
        "S[0] = total[0]",
    ]
    places = [got.index(line) for line in order]
    assert places == sorted(places)


def test_it_is_noted_and_again_finds_nothing():
    got = run(parse(KERNEL), FuseOnlineSoftmax())
    (note,) = notes_of(got)
    assert isinstance(note, RemarkNote)
    assert "one pass over each row" in note.text
    (kernel,) = ir.kernels(got)
    assert plan_online_sums(kernel) == ()
    check_other_kernel_stays(parse(KERNEL), got, FuseOnlineSoftmax())


@pytest.mark.parametrize(
    "change",
    [
        ("again[v] = X[bx, part * 64 + tx * 2 + v]", "again[v] = X[bx, part * 64 + v * 32 + tx]"),
        ("again[v]) - M[0]", "again[v]) * M[0]"),  # no difference
        ("again[v]) - M[0]", "again[v]) - S[0]"),  # of another value
        ('T.Cast("float32", again[v]) - M', "T.float32(2) - M"),  # of other elements
        ("T.max(own", "T.min(own"),
        ("total[0] + T.exp(", "total[0] + T.tanh("),
        ('memory_bound="row_reduction"', 'chosen="row_reduction"'),  # not ours
    ],
    ids=range(7),
)
def test_what_stays(change):
    func = parse(KERNEL, change)
    check(run(func, FuseOnlineSoftmax()), func)


def test_loops_of_other_lengths_stay():
    func = parse(KERNEL.replace("for part in range(4)", "for part in range(3)", 1))
    check(run(func, FuseOnlineSoftmax()), func)
