"""One row of a product: by dot products, beside kernels for more rows."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tvm_hopper import dlight, ir
from tvm_hopper.relax import report
from tvm_hopper.requests import keys
from tvm_hopper.simulation import verify
from tvm_hopper.testing import workloads
from tvm_hopper.testing.relax_forms import legalize, model_of

H200 = Target("nvidia/nvidia-h200")
op = relax.op


def linear(x, w, b, r):
    return op.add(op.nn.gelu(op.add(op.matmul(x, op.permute_dims(w)), b)), r)


def function(rows, dtype="float16"):
    tensors = [(rows, 1024), (24, 1024), (24,), (rows, 24)]
    (func,) = legalize(linear, *((x, dtype) for x in tensors)).functions.values()
    return func


def kinds(func):
    """Return of each kernel whether it does without tensor cores."""
    return [not ir.find_blocks(x, keys.WGMMA) for x in ir.kernels(func)]


def scheduled(func, **options):
    rule = dlight.Matmul(**options)
    sch = rule.apply(func, H200, False)
    assert sch is not None, rule.decisions
    return sch


# Only the kernel of one row computes in the type itself.
@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [("float16", (1, 0, 70)), pytest.param("bfloat16", (1, 2), marks=pytest.mark.slow)],
)
def test_any_number_of_rows_is_right(dtype, numbers):
    func = function("s", dtype)
    sch = scheduled(func, classes=(1, 8, 64))
    assert kinds(sch.mod["main"]) == [True, False, False]
    executable = tvm.compile(sch.mod, target=H200)
    for rows in numbers:
        x = np.random.default_rng(rows).normal(size=(rows, 1024)).astype("float32")
        given = {func.params[0].name: x.astype(ir.dtype_of(func.params[0]))}
        verify(executable, given, against=tvm.IRModule({"main": func})).require_clean()


def test_a_single_row_that_is_known():
    sch = scheduled(function(1))
    (kernel,) = ir.kernels(sch.mod["main"])
    assert not ir.find_blocks(kernel, keys.WGMMA)
    assert verify(sch, against=tvm.IRModule({"main": function(1)})).verdict == "clean"


def product(rows="m", n=96, k=1024, layout="NT"):
    half = {"out_dtype": "float16", "acc_dtype": "float16"}
    return workloads.matmul(rows, n, k, layout=layout, **half)["main"]


@pytest.mark.parametrize(
    ("func", "options"),
    [
        (product(), {"batch_invariant": True, "classes": (1, 8)}),
        (product(), {"classes": (8, 64)}),
        (product(layout="NN"), {"classes": (1, 8)}),
        (product(rows=2), {}),
    ],
    ids=["same bits", "no class of one row", "columns", "two rows"],
)
def test_what_has_no_such_kernel(func, options):
    assert True not in kinds(scheduled(func, **options).mod["main"])


def test_the_report_says_so():
    mod = model_of(
        lambda x, w: op.matmul(x, op.permute_dims(w)),
        (("s", 4096), "float16"),
        ((1024, 4096), "float16"),
    )
    found = report(mod, H200, sizes={"s": 1}, classes=(1, 8, 64))
    (one,) = found.functions
    first, *others = one.kernels
    assert (first.rows, first.launched_for) == (1, "s <= 1")
    assert "threads a sum" in first.configuration
    assert [x.rows for x in others] == [8, 64]
    assert found.section("main").times == {one.name: first.microseconds}
