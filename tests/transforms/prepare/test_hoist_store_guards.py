"""HoistStoreGuards: whether an iteration stores at all is asked around an asynchronous store."""

from __future__ import annotations

import pytest

from tests.transforms.scripts import check, check_other_kernel_stays, parse, run
from tvm_hopper.transforms.prepare.hoist_store_guards import HoistStoreGuards

KERNEL = """
def func(A: T.Buffer((96, 64), "float32"), C: T.Buffer((96, 64), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            for k in range(4):
                with T.sblock("trip"):
                    tile = T.sblock_alloc_buffer((8, 64), scope="shared.dyn")
                    for i, j in T.grid(8, 64):
                        with T.sblock("load", where=k < 3, async_copy="auto"):
                            tile[i, j] = A[bx * 32 + k * 8 + i, j]
                    AROUND
                    for i, j in T.grid(8, 64):
                        with T.sblock("store", where=CONDITION, async_copy="MECHANISM"):
                            C[bx * 32 + k * 8 + i, j] = tile[i, j]
"""


def kernel(condition: str, mechanism: str = "auto", around: str = ""):
    head, _, tail = KERNEL.partition("                    AROUND\n")
    if around:
        head += f"                    if {around}:\n"
        tail = "".join(f"    {line}\n" for line in tail.splitlines())
    tail = tail.replace("where=CONDITION, ", f"where={condition}, " if condition else "")
    return parse(head + tail, ("MECHANISM", mechanism))


@pytest.mark.parametrize(
    ("condition", "around", "kept"),
    [
        ("k < 3", "k < 3", ""),
        ("k * 3 + bx < 7 and i < 5", "k * 3 + bx < 7", "i < 5"),
        ("k % 2 == 1 and bx < 2", "k % 2 == 1 and bx < 2", ""),
    ],
)
def test_conditions_on_iterations(condition, around, kept):
    want = kernel(kept, around=around)
    check(run(kernel(condition), HoistStoreGuards()), want)
    check_other_kernel_stays(kernel(condition), want, HoistStoreGuards())


@pytest.mark.parametrize(
    ("condition", "mechanism"),
    [("i < 5", "tma"), ("tx < 64", "auto"), ("A[0, 0] < T.float32(1)", "auto"), ("k < 3", "none")],
)
def test_what_stays(condition, mechanism):
    before = kernel(condition, mechanism)
    assert run(before, HoistStoreGuards()).same_as(before)
