"""Operands of products as they lie in memory: repeats, casts and transposes."""

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I, relax as R

from tvm_hopper.relax.simplify_operands import SimplifyOperands
from tvm_hopper.testing.relax_forms import model_of


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((8, 32, 64), "float16"), w: R.Tensor((96, 64), "float32")) -> R.Tensor(
        (8, 32, 96), "float16"
    ):
        with R.dataflow():
            t = R.permute_dims(w)
            r = R.broadcast_to(t, R.shape([8, 64, 96]))
            v = R.reshape(r, R.shape([8, 64, 96]))
            c = R.astype(v, "float16")
            y = R.matmul(x, c)
            R.output(y)
        return y


@I.ir_module
class After:
    @R.function
    def main(x: R.Tensor((8, 32, 64), "float16"), w: R.Tensor((96, 64), "float32")) -> R.Tensor(
        (8, 32, 96), "float16"
    ):
        with R.dataflow():
            c = R.astype(w, "float16")
            t = R.permute_dims(c, axes=[1, 0])
            y = R.matmul(x, t)
            R.output(y)
        return y


def ops(mod):
    (block,) = mod["main"].body.blocks
    calls = (x.value for x in block.bindings if isinstance(x.value, relax.Call))
    return [str(x.op.name).removeprefix("relax.") for x in calls]


def test_a_repeated_weight():
    got = SimplifyOperands()(Before)
    tvm.ir.assert_structural_equal(got, After)
    assert SimplifyOperands()(got).same_as(got) or ops(SimplifyOperands()(got)) == ops(got)


def model(shape, build, x_shape=(8, 32, 64), dtype="float16"):
    return model_of(build, (x_shape, "float16"), (shape, dtype), takes_builder=True)


def repeat(bb, w, *shape):
    return bb.emit(relax.op.broadcast_to(w, shape))


CASES = {  # shape of the weight, the product, what is left
    "with a dimension of one": (
        (1, 64, 96),
        lambda bb, x, w: relax.op.matmul(x, repeat(bb, w, 8, 64, 96)),
        ["reshape", "matmul"],
    ),
    "of two dimensions of a batch": (
        (64, 96),
        lambda bb, x, w: relax.op.matmul(
            x, bb.emit(relax.op.reshape(repeat(bb, w, 8, 1, 64, 96), (8, 64, 96)))
        ),
        ["matmul"],
    ),
    "on the left": (
        (96, 32),
        lambda bb, x, w: relax.op.matmul(repeat(bb, w, 8, 96, 32), x),
        ["matmul"],
    ),
    "along the sum": (
        (1, 96),
        lambda bb, x, w: relax.op.matmul(x, repeat(bb, w, 64, 96)),
        ["broadcast_to", "matmul"],
    ),
    "of both operands": (
        (64, 96),
        lambda bb, x, w: relax.op.matmul(
            repeat(bb, bb.emit(relax.op.permute_dims(w)), 8, 96, 64), repeat(bb, w, 8, 64, 96)
        ),
        ["permute_dims", "broadcast_to", "matmul"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name):
    shape, build, want = CASES[name]
    assert ops(SimplifyOperands()(model(shape, build))) == want


def test_a_cast_behind_a_transpose():
    def build(bb, x, w):
        return relax.op.matmul(
            x, bb.emit(relax.op.astype(bb.emit(relax.op.permute_dims(w)), "float16"))
        )

    got = SimplifyOperands()(model((96, 64), build, dtype="float32"))
    assert ops(got) == ["astype", "permute_dims", "matmul"]


def test_two_casts_round_twice():
    def build(bb, x, w):
        t = bb.emit(relax.op.astype(bb.emit(relax.op.permute_dims(w)), "bfloat16"))
        return relax.op.matmul(x, bb.emit(relax.op.astype(t, "float16")))

    got = SimplifyOperands()(model((96, 64), build, dtype="float32"))
    assert ops(got) == ["permute_dims", "astype", "astype", "matmul"]
