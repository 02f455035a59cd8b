"""Models of operators build, and what is ours of them is right."""

import pytest

from tests.relax import models, user_models
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import NOBODY, OURS

QUICK = [("branches", "float16")]
MORE = [
    pytest.param(name, dtype, marks=pytest.mark.slow)
    for name in user_models.MODELS
    for dtype in ("float16", "bfloat16")
    if (name, dtype) not in QUICK
]


@pytest.mark.parametrize(("name", "dtype"), [*QUICK, *MORE])
def test_values(name, dtype):
    mod = user_models.MODELS[name](dtype)
    scheduled = models.schedule(mod)
    records = records_of(scheduled)
    assert NOBODY not in {x.computed_by for x in records}
    ours = [x for x in records if x.computed_by == OURS]
    assert any(x.product for x in ours)
    assert models.check_values(scheduled, models.plain_functions(mod), (21,)) == len(ours)


@pytest.mark.parametrize("name", ["branches", pytest.param("vision", marks=pytest.mark.slow)])
def test_builds(name):
    assert user_models.built(name, "bfloat16", models.H200, classes=models.CLASSES)
