"""guard_row_loop: one condition around a turn of a loop over rows."""

from __future__ import annotations

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.memory_bound.guard_row_loop import guard_row_loop

BEFORE = """
def func(X: T.Buffer((1000, 32), "float32"), Y: T.Buffer((1000, 32), "float32")):
    for bx in T.thread_binding(16, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((1,), "float32", scope="local")
                for r in range(63):
                    with T.sblock("load", where=CONDITION):
                        tile[0] = X[r * 16 + bx, tx]
                    with T.sblock("store", where=LAST):
                        Y[r * 16 + bx, tx] = tile[0]
"""
AFTER = """
def func(X: T.Buffer((1000, 32), "float32"), Y: T.Buffer((1000, 32), "float32")):
    for bx in T.thread_binding(16, thread="blockIdx.x", memory_bound="row_reduction"):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((1,), "float32", scope="local")
                for r in range(63):
                    if r * 16 + bx < 1000:
                        with T.sblock("load"):
                            tile[0] = X[r * 16 + bx, tx]
                        with T.sblock("store", where=REST):
                            Y[r * 16 + bx, tx] = tile[0]
"""
ROW = "r * 16 + bx < 1000"


def before(condition: str = ROW, last: str = ROW):
    return parse(BEFORE, ("CONDITION", condition), ("LAST", last))


@pytest.mark.parametrize(
    ("last", "rest"), [(ROW, "T.bool(True)"), (f"{ROW} and tx < 30", "tx < 30")]
)
def test_a_turn_has_one_condition(last, rest):
    check(run(before(last=last), guard_row_loop), parse(AFTER, ("REST", rest)))


@pytest.mark.parametrize(
    ("condition", "last"),
    [
        (ROW, "T.bool(True)"),  # a store without it
        ("r * 16 + bx + tx < 1000", "r * 16 + bx + tx < 1000"),  # not the same for all threads
        ("bx < 10", "bx < 10"),  # not of the turn
    ],
)
def test_what_threads_or_blocks_differ_in_stays(condition, last):
    check(run(before(condition, last), guard_row_loop), before(condition, last))


def test_turns_that_leave_something_in_registers_stay():
    load = "tile[0] = X[r * 16 + bx, tx]"
    kernel = BEFORE.replace(load, load.replace("= X", "= tile[0] + X"))
    last = '                with T.sblock("last"):\n                    Y[bx, tx] = tile[0]\n'
    func = parse(kernel + last, ("CONDITION", ROW), ("LAST", ROW))
    check(run(func, guard_row_loop), func)
