"""Models of operators on the device, whoever computes what of them, against float32."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.relax import models, user_models

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

LIMIT = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}


def as_float32(value):
    return value.astype("float32") if value.dtype.kind not in "iub" else value


def flat(value):
    return [value] if hasattr(value, "numpy") else [x for y in value for x in flat(y)]


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("name", user_models.MODELS)
def test_against_float32(name, dtype):
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    mod, device = user_models.MODELS[name](dtype), tvm.cuda(0)
    wide = relax.get_pipeline("zero")(user_models.MODELS[name]("float32"))
    ex = user_models.built(name, dtype, models.H200)
    machine = relax.VirtualMachine(ex, device)
    for sizes in user_models.SIZES[name]:
        given = user_models.arguments(mod, sizes)
        want = models.on_processor(wide, "main", [as_float32(x) for x in given])
        got = [
            x.numpy()
            for x in flat(machine["main"](*(tvm.runtime.tensor(x, device) for x in given)))
        ]
        for number, (one, other) in enumerate(zip(got, want, strict=True)):
            assert one.shape == other.shape
            if one.dtype.kind == "i":  # places of the largest of scores that are rounded
                assert np.mean(one != other) < 0.1
                continue
            one, other = one.astype("float64"), other.astype("float64")
            error = np.linalg.norm(one - other) / np.linalg.norm(other)
            print(f"{name} {dtype} {sizes} output {number}: {error:.1e}")
            assert error < LIMIT[dtype], (name, sizes, number, error)
