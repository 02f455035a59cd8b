"""Tensors whose dimensions a copy walks through as through one."""

import pytest

from tests.transforms.scripts import parse
from tvm_hopper.transforms.common.transfer import find_transfers
from tvm_hopper.transforms.mechanisms.tma_merged_dimensions import merge_dimensions
from tvm_hopper.transforms.mechanisms.tma_plan import plan_tma_copies

COPY = """
@T.prim_func(private=True, s_tir=True)
def func(a: T.handle):
    A = T.match_buffer(a, (3, 50, 64), "float16", STRIDES)
    for by in T.thread_binding(3, thread="blockIdx.y"):
        with T.sblock("kernel"):
            T.reads()
            T.writes()
            tile = T.sblock_alloc_buffer((1, 64, 64), "float16", scope="shared.dyn")
            for p, r, s in T.grid(1, 64, 64):
                with T.sblock("copy"):
                    T.sblock_attr({"tvm_hopper.async_copy": "tma", "tvm_hopper.swizzle": 128})
                    tile[p, r, s] = T.if_then_else(by * 64 + r < 150, VALUE, T.float16(0))
"""
ROW = "A[(by * 64 + r) // 50, (by * 64 + r) % 50, s]"


def program(value=ROW, strides=""):
    return parse(COPY, ("VALUE", value), ("STRIDES", strides))


def copy(**changed):
    (found,) = find_transfers(program(**changed))
    return found


@pytest.mark.parametrize("strides", ["", "strides=[3200, 64, 1]", "strides=[4800, 96, 1]"])
def test_rows_of_a_batch_are_rows(strides):
    found = merge_dimensions(copy(strides=strides))
    assert [str(x) for x in found.tensor.indices] == ["by * 64 + r", "s"]
    assert [int(x) for x in found.tensor.buffer.shape] == [150, 64]
    assert found.tensor.strides == (96 if "96" in strides else 64, 1)
    assert merge_dimensions(found) is found


@pytest.mark.parametrize(
    "changed",
    [
        {"strides": "strides=[3264, 64, 1]"},
        {"value": "A[by, r % 50, s]"},
        {"value": "A[by, r * 2 + s // 64, s % 64]"},  # of one dimension a box has rows or columns
        {
            "value": "A[(by * 64 + r) // 50, (by * 64 + r) % 50 - 1, s]"
        },  # which has a bound of its own
    ],
    ids=str,
)
def test_what_stays(changed):
    found = copy(**changed)
    assert merge_dimensions(found) is found


def test_the_map_is_of_the_memory_that_is_declared():
    (kernel,) = [program().body]
    found = copy()
    (plan,) = plan_tma_copies(kernel, (found,))
    assert [int(x.extent) for x in plan.dims] == [64, 150]
    assert plan.box == (64, 64)
    assert plan.declared.same_as(found.tensor.buffer)
