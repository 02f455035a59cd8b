"""Products with a transposed tensor read it as it lies; those of one tensor alone are left."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.relax import models
from tvm_hopper.relax import report
from tvm_hopper.relax.fuse_transposes import FuseTransposes

op = relax.op


def model(build, *shapes, dtype="float16"):
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    with builder.function("main", given):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(build(builder, *given)))
        builder.emit_func_output(out)
    return builder.finalize()


def gram(builder, x):
    return op.matmul(x, builder.emit(op.permute_dims(x)))


def turned_twice(builder, x):
    turned = builder.emit(op.permute_dims(x))
    return op.matmul(turned, turned)


def both(builder, x, w):
    """Fuse the product beside the one that stays."""
    y = builder.emit(op.matmul(x, builder.emit(op.permute_dims(w))))
    return gram(builder, y)


CASES = {
    "x times x": (gram, [(5, 8)]),
    "turned twice": (turned_twice, [(8, 8)]),
    "both": (both, [(5, 8), (16, 8)]),
    "a batch": (
        lambda b, x: op.matmul(x, b.emit(op.permute_dims(x, [0, 2, 1]))),
        [(2, 5, 8)],
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_one_tensor_on_both_sides(what):
    """TVM's own pass fails on these."""
    build, shapes = CASES[what]
    mod = model(build, *shapes, dtype="float32")
    given = models.inputs_of(mod, "main", {})
    (want,) = models.on_processor(relax.get_pipeline("zero")(mod), "main", given)
    (got,) = models.on_processor(relax.get_pipeline("zero")(FuseTransposes()(mod)), "main", given)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_others_are_fused():
    mod = model(lambda b, x, w: op.matmul(x, b.emit(op.permute_dims(w))), (5, 64), (16, 64))
    ours, stock = FuseTransposes()(mod), relax.transform.FuseTransposeMatmul()(mod)
    assert ours.script() == stock.script()
    assert "NT_matmul" in {
        x.name_hint for x in FuseTransposes()(model(both, *CASES["both"][1])).functions
    }


def test_a_model_of_both_builds():
    said = report(model(both, (64, 128), (96, 128)), models.H200)
    assert "NT_matmul" in {x.name for x in said.functions}
