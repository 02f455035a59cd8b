"""Every kernel of ours in a small Llama computes what its plain loops say, in each size class."""

import pytest

from tests.relax import models
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import OURS
from tvm_hopper.testing.llama import SMALL, llama

ROWS = (5, 70)  # of the first class, and above the last bound


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_function_is_ours(dtype):
    records = records_of(models.scheduled_llama(dtype, "none"))
    assert {x.computed_by for x in records} == {OURS}
    products = [x for x in records if x.product]
    assert len(products) == 5
    assert all(len(x.kernels) == len(models.CLASSES) for x in products)
    narrow = [x for x in products if x.product.out_dtype == dtype]
    assert all(x.note == f"sums in float32 instead of {dtype}" for x in narrow)
    assert len(narrow) == 4


@pytest.mark.slow  # test_user_models.py compares a whole model too, of fewer kernels
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values(dtype):
    mod = models.scheduled_llama(dtype, "none")
    plain = models.plain_functions(llama(SMALL, dtype, "none"))
    assert models.check_values(mod, plain, ROWS) == 5 * len(ROWS) + 2
