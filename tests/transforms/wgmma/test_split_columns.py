"""Loops over columns that read an accumulator at several distances."""

import pytest
import tvm

from tests.transforms.scripts import parse, run
from tests.transforms.wgmma.test_fragment_loops import PRODUCT
from tvm_hopper import ir
from tvm_hopper.transforms.kernel_pass import kernel_pass
from tvm_hopper.transforms.wgmma.split_columns import plan_columns, split_columns

PLAIN = 'T.Cast("DTYPE", acc[i, j])'
SplitColumns = kernel_pass("SplitColumns", plan_columns, split_columns)


def stores_of(value):
    func = parse(PRODUCT.replace(PLAIN, value), ("N", "32"), ("DTYPE", "float32"))
    got = run(func, SplitColumns())
    return func, got, ir.find_all(got.body, ir.SBlock, lambda x: x.name_hint == "store")


def test_halves():
    _, got, stores = stores_of(
        "acc[i, j] + T.if_then_else(j < 16, -acc[i, j + 16], acc[i, j - 16])"
    )
    assert [str(x.body.value) for x in stores] == [
        "acc[i, j] + acc[i, j + 16] * T.float32(-1.0)",
        "acc[i, j + 16] + acc[i, j + 16 - 16]",
    ]
    assert [str(x.body.indices[1]) for x in stores] == ["j", "j + 16"]
    loops = ir.find_all(got.body, ir.For, lambda x: x.loop_var.name == "j")
    assert [int(x.extent) for x in loops][-2:] == [16, 16]


@pytest.mark.parametrize(
    "value",
    [
        "acc[i, j] * T.if_then_else(j < 16, T.float32(1), T.float32(2))",  # of one place
        "acc[i, j] + T.if_then_else(j % 2 == 0, acc[i, j + 1], acc[i, j - 1])",  # a pair
        "acc[i, j] + acc[i, j + 4]",  # of another thread, which find_fragment_nests refuses
    ],
)
def test_not_where_one_distance_serves_all_columns(value):
    func, got, _ = stores_of(value)
    tvm.ir.assert_structural_equal(got.body, func.body)
