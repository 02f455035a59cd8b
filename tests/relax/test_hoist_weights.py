"""hoist_weights: what weights alone determine is made by a function of its own."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.relax import models
from tvm_hopper.errors import OptionError
from tvm_hopper.relax import hoist_weights, join_products, report, to_half
from tvm_hopper.testing.relax_forms import model_of

op = relax.op
SHAPES = [(2, 3, 8, 8), (16, 3, 3, 3), (16, 16, 3, 3), (2, 8), (8, 256)]  # images, filters, rows


def compute(x, v, w, rows, m):
    y = op.nn.relu(op.nn.conv2d(x, v, strides=(2, 2), padding=(1, 1)))
    y = op.reshape(op.nn.conv2d(y, w, padding=(1, 1)), (2, 256))
    return op.matmul(op.add(y, op.matmul(rows, m)), op.permute_dims(m))


def model(num_input=1):
    return model_of(compute, *((s, "float16") for s in SHAPES), num_input=num_input)


def test_values():
    mod = model()
    made = hoist_weights(mod, models.H200)
    relax.analysis.well_formed(made)
    rng = np.random.default_rng(0)
    given = [rng.integers(-1, 2, s).astype("float16") for s in SHAPES]
    (want,) = models.on_processor(mod, "main", given)
    ex = relax.build(made, target="llvm", relax_pipeline="default_build")
    machine = relax.VirtualMachine(ex, tvm.cpu())
    x, *weights = map(tvm.runtime.tensor, given)
    got = machine["main"](x, *machine["transform_params"](tuple(weights))).numpy()
    np.testing.assert_array_equal(got, want)


def test_no_call_is_of_weights_alone():
    """Filters have their channels last; a transposed matrix stays as it lies."""
    before = report(model(), models.H200).section("main")
    after = report(hoist_weights(model(), models.H200), models.H200).section("main")
    for part, is_there in ((before, True), (after, False)):
        assert any(y.of_weights for x in part.rows for y in x.function.calls) == is_there


def test_nothing_to_hoist():
    mod = model_of(lambda x, w: op.matmul(x, op.permute_dims(w)), ((4, 64), "float16"),
                   ((64, 64), "float16"), num_input=1)  # fmt: skip
    assert hoist_weights(mod, models.H200) is mod


def test_packed_weights_stay_packed():
    packed = relax.transform.BundleModelParams("weights")(model())
    made = hoist_weights(packed, models.H200)
    rng = np.random.default_rng(1)
    given = [rng.integers(-1, 2, s).astype("float16") for s in SHAPES]
    (want,) = models.on_processor(model(), "main", given)
    ex = relax.build(made, target="llvm", relax_pipeline="default_build")
    machine = relax.VirtualMachine(ex, tvm.cpu())
    x, *weights = map(tvm.runtime.tensor, given)
    got = machine["main"](x, machine["transform_params"](tuple(weights))).numpy()
    np.testing.assert_array_equal(got, want)


def test_what_would_grow_is_made_at_each_call():
    """Weights of a few bits are read as such, and what is repeated once."""

    def decoded(x, q, s, b):
        w = op.multiply(op.astype(op.right_shift(q, relax.const(4, "int8")), "float16"), s)
        y = op.add(op.matmul(x, op.permute_dims(w)), op.broadcast_to(b, (4, 64)))
        return op.multiply(y, op.permute_dims(op.exp(s)))

    shapes = [((4, 64), "float16"), ((64, 64), "int8"), ((64, 1), "float16"), ((1, 64), "float16")]
    mod = model_of(decoded, *shapes, num_input=1)
    made = hoist_weights(mod, models.H200)
    assert made is not mod
    sizes = [tuple(map(int, x.ty.shape.values)) for x in made["main"].params]
    assert [str(x.ty.dtype) for x in made["main"].params].count("int8") == 1
    assert sizes.count((64, 64)) == sizes.count((4, 64)) == 1
    assert "stop_lift" not in str(made)


def unequal():
    """Return two functions, of which one has fewer weights."""
    mod = model()
    few = model_of(lambda x, v: op.nn.conv2d(x, v), (SHAPES[0], "float16"),
                   (SHAPES[1], "float16"), num_input=1)  # fmt: skip
    mod["few"] = few["main"].with_attr("global_symbol", "few")
    return mod


@pytest.mark.parametrize("request_", [to_half, join_products])
def test_requests_come_before(request_):
    with pytest.raises(OptionError, match=r"main as hoist_weights returned it.*last"):
        request_(hoist_weights(model(), models.H200))


@pytest.mark.parametrize(
    ("mod", "found"),
    [
        (3, "found int"),
        (model(None), "no attribute num_input"),
        (unequal(), "few has 1 weights, main has 4 weights"),
    ],
)
def test_what_is_refused(mod, found):
    with pytest.raises(OptionError, match=found):
        hoist_weights(mod, models.H200)


def test_what_is_no_target():
    with pytest.raises(OptionError, match="target=5"):
        hoist_weights(model(), 5)
