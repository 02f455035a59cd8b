"""Norms of bfloat16 build, as one kernel of ours, and are those of float32."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.relax import models
from tvm_hopper.relax import report
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.records import OURS
from tvm_hopper.relax.wide_norms import WideNorms

op = relax.op
CASES = {
    "rows": (lambda *x: op.nn.layer_norm(*x, [-1]), [(3, 5, 64), (64,), (64,)]),
    "two axes": (lambda *x: op.nn.layer_norm(*x, [1, 2]), [(3, 4, 16), (4, 16), (4, 16)]),
    "channels": (lambda *x: op.nn.instance_norm(*x, 1, [2, 3]), [(2, 4, 5, 8), (4,), (4,)]),
}


def model(what, dtype="bfloat16"):
    build, shapes = CASES[what]
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    with builder.function("main", given):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(build(*given)))
        builder.emit_func_output(out)
    return builder.finalize()


@pytest.mark.parametrize("what", CASES)
def test_one_function_of_float32(what):
    mod = model(what)
    given = models.inputs_of(mod, "main", {})
    (got,) = models.on_processor(relax.get_pipeline("zero")(WideNorms()(mod)), "main", given)
    wide = relax.get_pipeline("zero")(model(what, "float32"))
    (want,) = models.on_processor(wide, "main", [x.astype("float32") for x in given])
    error = np.linalg.norm(got.astype("float32") - want) / np.linalg.norm(want)
    assert error < 3e-3
    assert len(models.plain_functions(mod)) == 1


def test_a_kernel_of_ours():
    scheduled = models.schedule(model("rows"))
    (record,) = records_of(scheduled)
    assert (record.computed_by, record.rule) == (OURS, "RowReduction")
    assert models.check_values(scheduled, models.plain_functions(model("rows")), (4,)) == 1
    assert {x.computed_by for x in report(model("channels"), models.H200).functions} == {OURS}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_types_are_left(dtype):
    mod = model("rows", dtype)
    assert WideNorms()(mod).script() == mod.script()
