"""clamp_rows: a thread computes with the last row in place of rows that do not exist."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.memory_bound.clamp_rows import clamp_rows

BEFORE = """
def func(X: T.Buffer((1001, 64), "float16"), Y: T.Buffer((1001,), "float32")):
    for bx in T.thread_binding(16, thread="blockIdx.x", memory_bound="row_reduction"):
        for ty in T.thread_binding(16, thread="threadIdx.y"):
            with T.sblock("", reads=[X[0:1001, 0:64]], writes=[Y[0:1001]]):
                x = T.sblock_alloc_buffer((4,), "float16", scope="local")
                y = T.sblock_alloc_buffer((4,), scope="local")
                for r in T.unroll(4):
                    with T.sblock("load", where=bx * 64 + ty * 4 + r < 1001):
                        x[r] = X[bx * 64 + ty * 4 + r, 0]
                for r in T.unroll(4):
                    with T.sblock("compute", where=bx * 64 + ty * 4 + r < 1001):
                        y[r] = T.Cast("float32", x[r])
                for r in T.unroll(4):
                    with T.sblock("store", where=bx * 64 + ty * 4 + r < 1001):
                        Y[bx * 64 + ty * 4 + r] = y[r]
"""
ROW, LAST = "bx * 64 + ty * 4 + r", "T.min(bx * 64 + ty * 4 + r, 1000) * 1 + 0"
GUARD = f"where={ROW} < 1001"
CLAMPED = [
    (f'"load", {GUARD}', f'"load", reads=[X[{LAST}, 0]]'),
    (f"x[r] = X[{ROW}, 0]", f"x[r] = X[{LAST}, 0]"),
    (f'"compute", {GUARD}', '"compute"'),
]
WHOLE = "bx * 16 + ty < 250"  # of 1000 rows, four at a time


def test_stores_alone_are_conditional():
    check(run(parse(BEFORE), clamp_rows), parse(BEFORE, *CLAMPED))


def test_rows_that_come_by_fours():
    """TVM names all rows of a thread by one condition."""
    whole = [("1001", "1000"), (f"{ROW} < 1000", WHOLE)]
    last = "T.min(bx * 16 + ty, 249) * 4 + r"
    clamped = [(x.replace(f"{ROW} < 1001", WHOLE), y.replace(LAST, last)) for x, y in CLAMPED]
    check(run(parse(BEFORE, *whole), clamp_rows), parse(BEFORE, *whole, *clamped))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[bx * 64 + ty * 4 + r] = y", "[bx * 64 + ty * 4] = y"),  # one row of a thread
        ("T.unroll(4)", "T.serial(4)"),  # rows of a loop
        ("row_reduction", "pointwise"),
        (f'"store", {GUARD}', '"store"'),  # something of all rows leaves the kernel
        (f"X[{ROW}, 0]", "X[(bx * bx + ty * 4 + r) % 1001, 0]"),  # of another row
        (f"X[{ROW}, 0]", "X[bx * 64 + r, 0]"),
        (f'"load", {GUARD}', '"load", where=1001 > bx * 64 + ty * 4 + r'),
    ],
)
def test_other_conditions_stay(old, new):
    func = parse(BEFORE, (old, new))
    check(run(func, clamp_rows), func)
