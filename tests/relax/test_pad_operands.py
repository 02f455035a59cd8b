"""Products whose operands lie as no kernel takes them get copies that one does."""

import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I, relax as R

from tests.relax import models
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.pad_operands import PadOperands
from tvm_hopper.relax.records import OURS
from tvm_hopper.testing.relax_forms import model_of


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((2, 20, 37), "float16"), w: R.Tensor((2, 64, 37), "float16")) -> R.Tensor(
        (2, 20, 64), "float16"
    ):
        with R.dataflow():
            t = R.permute_dims(w, axes=[0, 2, 1])
            y = R.matmul(x, t)
            R.output(y)
        return y


@I.ir_module
class After:
    @R.function
    def main(x: R.Tensor((2, 20, 37), "float16"), w: R.Tensor((2, 64, 37), "float16")) -> R.Tensor(
        (2, 20, 64), "float16"
    ):
        with R.dataflow():
            x1 = R.nn.pad(x, (0, 0, 0, 0, 0, 3))
            w1 = R.nn.pad(w, (0, 0, 0, 0, 0, 3))
            t = R.permute_dims(w1, axes=[0, 2, 1])
            y = R.matmul(x1, t)
            R.output(y)
        return y


def test_both_operands_are_padded():
    got = PadOperands()(Before)
    tvm.ir.assert_structural_equal(got, After)
    tvm.ir.assert_structural_equal(PadOperands()(got), After)


N = tirx.Var("n", "int64")
BYTES = {"left": (2, 20, 40), "right": (2, 40, 64), "dtype": "int8"}


def model(left, right, dtype="float16", turned=False, sum_dtype=None):
    def product(x, w):
        a = relax.op.permute_dims(x, [0, 2, 1]) if turned else x
        return relax.op.matmul(a, w, out_dtype=sum_dtype)

    return model_of(product, (left, dtype), (right, dtype))


@pytest.mark.parametrize(
    ("case", "num_pads", "num_turns"),
    [
        ({"left": (2, 20, 37), "right": (2, 37, 64)}, 2, 0),
        ({"left": (2, 20, 40), "right": (2, 40, 64)}, 0, 0),
        ({**BYTES, "sum_dtype": "int32"}, 2, 2),  # rows along the sum
        (BYTES, 0, 0),  # tensor cores have no such sum
        ({"left": (2, 37, 20), "right": (2, 37, 64), "turned": True}, 0, 1),  # rows of 20 and of 64
        ({"left": (2, 20, 37), "right": (2, 37, 33)}, 2, 2),  # rows of 33 do not load either
        ({"left": (2, 20, 40), "right": (2, 40, N)}, 0, 2),
        ({"left": (2, 20, N), "right": (2, N, 33)}, 0, 0),  # the sum is not known
        ({"left": (2, 8, 40), "right": (40, 33)}, 0, 2),
        ({"left": (2, 8, 40), "right": (2, 40, 33)}, 0, 0),  # a copy takes longer
        ({"left": (2, 20, 40), "right": (2, 40, 1)}, 0, 0),  # a column is a row
        ({"left": (2, 20, 37), "right": (2, 37, 64), "dtype": "float32"}, 0, 0),
    ],
    ids=["rows", "whole rows", "bytes", "sums of bytes", "no row along the sum", "odd columns",
         "symbolic columns", "symbolic sum", "one weight", "few rows", "one column",
         "no tensor cores"],
)  # fmt: skip
def test_which_are_copied(case, num_pads, num_turns):
    got = str(PadOperands()(model(**case)))
    assert (got.count("R.nn.pad("), got.count("R.permute_dims(")) == (num_pads, num_turns)


@pytest.mark.parametrize("columns", [64, 77])
def test_the_product_and_the_copies_are_ours_and_right(columns):
    mod = model((2, 20, 37), (2, 37, columns))
    got = models.schedule(mod)
    records = records_of(got)
    assert {x.computed_by for x in records} == {OURS}
    assert [x.rule for x in records].count("Matmul") == 1
    assert models.check_values(got, models.plain_functions(mod), (1,)) == len(records)
