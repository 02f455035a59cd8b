"""What TVM's rules compute of a model sums in float32, too, unless sums are as the model says."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.relax import models
from tvm_hopper import ir
from tvm_hopper.relax.keep_records import records_of
from tvm_hopper.relax.options import ModelOptions
from tvm_hopper.relax.records import STOCK
from tvm_hopper.relax.schedule_functions import ScheduleFunctions
from tvm_hopper.testing.relax_forms import model_of

# of these models nearly nothing is ours, which the build says
pytestmark = pytest.mark.filterwarnings("ignore:model. found:tvm_hopper.errors.HopperWarning")

op = relax.op
SHAPES = {
    "convolution": [(1, 64, 6, 6), (8, 16, 3, 3)],
    "grouped": [(1, 32, 9, 9), (32, 16, 5, 5)],
    "heads": [(2, 8, 256), (2, 256, 8)],
}
BUILD = {
    "convolution": lambda x, w: op.nn.conv2d(x, w, padding=1, groups=4),
    "grouped": lambda x, w: op.nn.conv2d(x, w, padding=2, groups=2),
    "heads": op.matmul,
}


def model(what, dtype):
    tensors = ((s, dtype) for s in SHAPES[what])
    return model_of(lambda *given: op.nn.relu(BUILD[what](*given)), *tensors)


def scheduled(what, dtype="float16", **options):
    mod = models.schedule(model(what, dtype), **options)
    (record,) = (x for x in records_of(mod) if x.computed_by == STOCK)
    return record, mod[record.name]


def sums_in(func):
    """Return the types of what blocks reduce into."""
    blocks = ir.find_all(func.body, ir.SBlock, lambda x: "update" in str(x.name_hint))
    blocks = blocks or ir.find_all(func.body, ir.SBlock, lambda x: x.init is not None)
    return {ir.dtype_of(x.writes[0].source) for x in blocks}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("what", ["convolution", "grouped"])
def test_sums_of_others_are_wide_and_reported(what, dtype):
    record, func = scheduled(what, dtype)
    assert record.note == f"sums in float32 instead of {dtype}"
    assert sums_in(func) == {"float32"}


@pytest.mark.parametrize(
    ("what", "dtype", "options"),
    [
        ("convolution", "float16", {"accumulate": None}),  # as the model says
        ("convolution", "float32", {}),
    ],
)
def test_what_stays_as_it_is(what, dtype, options):
    record, func = scheduled(what, dtype, **options)
    assert record.note == ""
    assert sums_in(func) == {dtype}


@pytest.mark.parametrize("what", ["convolution", "heads"])
def test_values(what):
    """A rounding at the end, where sums of the model's own type are much further off."""
    (plain,) = models.plain_functions(model(what, "float16")).values()
    wide, _ = ScheduleFunctions(ModelOptions())._widened(plain)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype("float16") for s in SHAPES[what]]
    (exact,) = models.on_processor(
        relax.get_pipeline("zero")(model(what, "float32")),
        "main",
        [x.astype("float32") for x in given],
    )

    def error(func):
        ex = tvm.compile(func.with_attr("global_symbol", "main"), target="llvm")
        out = tvm.runtime.tensor(np.zeros(exact.shape, "float16"))
        ex["main"](*map(tvm.runtime.tensor, given), out)
        return np.linalg.norm(out.numpy() - exact) / np.linalg.norm(exact)

    assert error(wide) < 3e-4
    assert error(plain) > 1e-3


def test_if_all_refuse_wide_sums_they_are_asked_again(monkeypatch):
    """A function is not lost by what is better for its sums."""
    from tvm_hopper.dlight.collection import GuardedRule

    apply = GuardedRule.apply

    def narrow_alone(self, func, target, tunable):
        wide = "float32" in func.script()
        return None if wide else apply(self, func, target, tunable)

    monkeypatch.setattr(GuardedRule, "apply", narrow_alone)
    record, func = scheduled("convolution")
    assert record.computed_by == STOCK
    assert record.note == ""
    assert sums_in(func) == {"float16"}
