"""Products with a transposed tensor read it as it lies; those of one tensor alone are left."""

import numpy as np
import pytest
from tvm import relax

from tests.relax import models
from tvm_hopper.relax import report
from tvm_hopper.relax.fuse_transposes import FuseTransposes
from tvm_hopper.testing.relax_forms import model_of

op = relax.op


def model(build, *shapes, dtype="float16"):
    if build is of_two_blocks:
        return of_two_blocks(dtype, *shapes)
    return model_of(build, *((s, dtype) for s in shapes), takes_builder=True)


def of_two_blocks(dtype, *shapes):
    """Transpose in one block what only this block has, and multiply in the next one."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType(s, dtype)) for n, s in zip("xw", shapes, strict=True))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            turned = builder.emit_output(op.permute_dims(builder.emit(op.nn.relu(w))))
        with builder.dataflow():
            out = builder.emit_output(op.matmul(x, turned))
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


def readers(builder, x, w):
    """One transposed weight of two products, and of what one of them multiplies by."""
    turned = builder.emit(op.permute_dims(w))
    first = builder.emit(op.matmul(x, turned))
    second = builder.emit(op.matmul(builder.emit(op.nn.relu(turned)), turned))
    return relax.Tuple([first, second, builder.emit(op.matmul(w, turned)), turned])


CASES = {
    "more readers": (readers, [(5, 8), (8, 8)]),
    "three dimensions": (
        lambda b, x, w: op.matmul(x, b.emit(op.permute_dims(w))),
        [(4, 5, 8), (16, 8, 4)],
    ),
    "a vector": (lambda b, x, w: op.matmul(x, b.emit(op.permute_dims(w))), [(5, 8), (8,)]),
    "an output of its block": (of_two_blocks, [(5, 8), (16, 8)]),
    "x times x": (gram, [(5, 8)]),
    "turned twice": (turned_twice, [(8, 8)]),
    "both": (both, [(5, 8), (16, 8)]),
    "a batch": (
        lambda b, x: op.matmul(x, b.emit(op.permute_dims(x, [0, 2, 1]))),
        [(2, 5, 8)],
    ),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("what", CASES)
def test_values(what):
    """TVM's own pass fails on these."""
    build, shapes = CASES[what]
    mod = model(build, *shapes, dtype="float32")
    given = models.inputs_of(mod, "main", {})
    wanted = models.on_processor(relax.get_pipeline("zero")(mod), "main", given)
    found = models.on_processor(relax.get_pipeline("zero")(FuseTransposes()(mod)), "main", given)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_each_product_with_a_weight_of_two_is_fused():
    """A weight that two layers share is not copied because of that."""

    def tied(builder, x, y, w):
        turned = builder.emit(op.permute_dims(w))
        return relax.Tuple([builder.emit(op.matmul(a, turned)) for a in (x, y)])

    text = FuseTransposes()(model(tied, (5, 8), (7, 8), (16, 8)))["main"].script()
    assert text.count("NT_matmul") == 2
    assert "permute_dims" not in text


def test_products_outside_of_dataflow_keep_their_one_copy():
    x, y, w = (relax.Var(n, relax.TensorType((8, 8), "float16")) for n in "xyw")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y, w]):
        turned = builder.emit(op.permute_dims(w))
        parts = [builder.emit(op.matmul(a, turned)) for a in (x, y)]
        builder.emit_func_output(relax.Tuple(parts))
    mod = builder.finalize()
    assert FuseTransposes()(mod).script() == mod.script()


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
