"""Functions of 16 bits over all values, and norms far from zero, on a GPU against float64."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.relax import models
from tests.relax.test_wide_functions import ACTIVATIONS, LARGE_MEANS, model, wrong_values
from tvm_hopper.facts.dtypes import DTYPES

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")


def run(build, given, dtype):
    mod = model(build, [x.shape for x in given], dtype)
    ex = relax.build(mod, target=models.H200, relax_pipeline="tvm_hopper")
    device = tvm.cuda(0)
    got = relax.VirtualMachine(ex, device)["main"](*(tvm.runtime.tensor(x, device) for x in given))
    return got.numpy().astype(np.float64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("what", ACTIVATIONS)
def test_every_value(what, dtype):
    assert not wrong_values(run, what, dtype)


@pytest.mark.parametrize("shape", [(2, 16, 5, 6), (8, 512, 7, 7), (2, 320, 64, 64)], ids=str)
@pytest.mark.parametrize(("dtype", "mean"), [("float32", 1e4), ("float16", 600)])
@pytest.mark.parametrize("what", ["group_norm", "instance_norm", "variance"])
def test_means_far_from_zero(what, dtype, mean, shape):
    build, vectors, function = LARGE_MEANS[what]
    rng = np.random.default_rng(3)
    x = (mean + rng.standard_normal(shape) * (1 if dtype == "float32" else 4)).astype(dtype)
    ones = [np.ones(shape[1], dtype), np.zeros(shape[1], dtype)][:vectors]
    got = run(build, [x, *ones], dtype)
    want = function(x.astype(np.float64)).reshape(got.shape)
    assert np.all(np.abs(got - want) < 4e-3 * (1 + np.abs(want)))


@pytest.mark.parametrize("what", ["mod", "floor_mod", "power"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_binary_functions(what, dtype):
    function = {"mod": np.fmod, "floor_mod": np.mod, "power": np.power}[what]
    kind = DTYPES[dtype].numpy
    rng = np.random.default_rng(3)
    x, y = (rng.uniform(0.5, 5, (64, 1024)).astype(kind) for _ in range(2))
    got = run(getattr(relax.op, what), [x, y], dtype)
    want = function(x.astype(np.float64), y.astype(np.float64))
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert np.all(np.abs(got - want) <= np.abs(want) * unit * 1.01)
