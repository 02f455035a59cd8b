"""hoist_weights: what weights alone determine is made by a function of its own."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.relax import models
from tvm_hopper.errors import OptionError
from tvm_hopper.relax import hoist_weights, report
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


@pytest.mark.parametrize(
    ("mod", "found"), [(3, "found int"), (model(None), "no attribute num_input")]
)
def test_what_is_refused(mod, found):
    with pytest.raises(OptionError, match=found):
        hoist_weights(mod, models.H200)
