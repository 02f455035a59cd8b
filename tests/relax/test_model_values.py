"""Every kernel of ours in a small Llama computes what its plain loops say, in each size class."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target

from tests.relax import models
from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.relax.flatten_batch import FlattenBatch
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import OURS
from tvm_hopper.simulation import verify
from tvm_hopper.testing.llama import SMALL, llama

ROWS = (5, 70)  # of the first class, and above the last bound


def plain_functions(dtype: str) -> dict[str, tirx.PrimFunc]:
    """Return the small Llama's functions as they are before they are scheduled."""
    mod = FlattenBatch()(models.legalized(llama(SMALL, dtype, "none")))
    mod = relax.transform.DeadCodeElimination()(mod)
    return {gv.name_hint: f for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}


def draw(func: tirx.PrimFunc, rows: int) -> dict[str, np.ndarray]:
    """Draw the inputs of a function; symbols are rows."""
    rng = np.random.default_rng(0)
    found = {}
    for param in func.params[:-1]:
        shape = [rows if ir.static_int(x) is None else int(x) for x in param.ty.shape]
        values = rng.standard_normal(shape) * shape[-1] ** -0.25
        found[str(param.name)] = values.astype(DTYPES[ir.dtype_of(param)].numpy)
    return found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_function_is_ours(dtype):
    mod = models.scheduled_llama(dtype, "none")
    records = records_of(mod)
    assert {x.computed_by for x in records} == {OURS}
    products = [x for x in records if x.product]
    assert len(products) == 5
    assert all(len(x.kernels) == len(models.CLASSES) for x in products)
    narrow = [x for x in products if x.product.out_dtype == dtype]
    assert all(x.note == f"sums in float32 instead of {dtype}" for x in narrow)
    assert len(narrow) == 4


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_values(dtype):
    plain = plain_functions(dtype)
    mod = models.scheduled_llama(dtype, "none")
    seen = 0
    for gv, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        name = gv.name_hint
        kernel = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        wanted = plain[name].with_attr("global_symbol", "main")
        for rows in ROWS:
            report = verify(
                kernel, draw(func, rows), target=Target(models.H200), against=wanted, progress=False
            )
            assert report.verdict == "clean", f"{name}, {rows} rows\n{report.table()}"
            seen += 1
    assert seen == 2 * len(plain) == 16
