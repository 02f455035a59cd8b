"""Functions that relax legalises are taken as they are, by hs.row_reduction and hs.pointwise."""

import pytest
import tvm
from tvm import relax, s_tir, tirx

from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.simulation import verify
from tvm_hopper.testing.relax_forms import model_of

op = relax.op


def legalised(build, *tensors):
    """Return the one function that an expression of tensors, (shape, dtype) each, becomes."""
    mod = relax.get_pipeline("zero")(model_of(build, *tensors))
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def rows(*shape, dtype="float32"):
    return shape, dtype


NORMS = {"axes": [-1], "epsilon": 1e-5}
ROWS = {
    "rms_norm": (
        lambda x, w: op.nn.rms_norm(x, w, **NORMS),
        rows(2, 3, 256, dtype="bfloat16"),
        rows(256, dtype="bfloat16"),
    ),
    "layer_norm": (
        lambda x, w, b: op.nn.layer_norm(x, w, b, **NORMS),
        *(rows(*shape, dtype="float16") for shape in ((3, 256), (256,), (256,))),
    ),
    "softmax": (lambda x: op.nn.softmax(x, axis=-1), rows(2, 3, 100)),
    "log_softmax": (lambda x: op.nn.log_softmax(x, axis=-1), rows(4, 100)),
    "mean": (lambda x: op.mean(x, axis=-1, keepdims=True), rows(2, 3, 100)),
    "variance": (lambda x: op.variance(x, axis=-1), rows(6, 100)),
    "max": (lambda x: op.max(x, axis=-1), rows(6, 100)),
}
ELEMENTS = {
    "gelu": (lambda x, y: op.multiply(op.nn.gelu(x), y), *[rows(6, 128, dtype="bfloat16")] * 2),
    "silu": (lambda x, y: op.multiply(op.nn.silu(x), y), *[rows(6, 128, dtype="float16")] * 2),
    "bias": (op.add, rows(2, 3, 128), rows(128)),
    "relu": (op.nn.relu, rows(1023)),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ROWS)
def test_rows(name):
    mod = legalised(*ROWS[name])
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch)
    (kernel,) = ir.kernels(sch.mod["main"])
    assert kernel.annotations[keys.MEMORY_BOUND] == keys.ROW_REDUCTION
    if name in ("rms_norm", "variance"):
        verify(sch, against=mod).require_clean()


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name):
    mod = legalised(*ELEMENTS[name])
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch)
    (kernel,) = ir.kernels(sch.mod["main"])
    assert kernel.annotations[keys.MEMORY_BOUND] == keys.POINTWISE


def test_sums_of_halves_are_refused():
    mod = legalised(lambda x: op.nn.softmax(x, axis=-1), rows(4, 64, dtype="bfloat16"))
    with pytest.raises(ScheduleError, match=r"a reduction in bfloat16; need .*; cast the input to"):
        hs.row_reduction(s_tir.Schedule(mod))
