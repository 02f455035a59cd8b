"""What no rule takes is an error of the build; next to nothing that is ours is said."""

from __future__ import annotations

import re

import pytest
from tvm import relax
from tvm.script import tirx as T

from tests.relax import models
from tvm_hopper.errors import LoweringError
from tvm_hopper.relax import report
from tvm_hopper.relax.check_served import describe_little
from tvm_hopper.relax.records import GIVEN, NOBODY, OURS, STOCK, CallRecord, FunctionRecord
from tvm_hopper.testing.relax_forms import model_of


@T.prim_func(s_tir=True, private=True)
def histogram(X: T.Buffer((256,), "int32"), H: T.Buffer((64,), "int32")):
    for b in range(64):
        with T.sblock("init"):
            vb = T.axis.spatial(64, b)
            H[vb] = 0
    for i in range(256):
        with T.sblock("hist"):
            vi = T.axis.reduce(256, i)
            H[X[vi]] = H[X[vi]] + 1


def model(func):
    def call(builder, x):
        gv = builder.add_func(func, "hist")
        return relax.call_tir(gv, [x], relax.TensorType((64,), "int32"))

    return model_of(call, ((256,), "int32"), takes_builder=True)


def test_a_function_that_no_rule_takes():
    wanted = (
        r"function hist: found loops that no rule makes a kernel of \(Matmul: .*RowReduction: .*"
    )
    with pytest.raises(
        LoweringError, match=wanted + "initial value.*Fallback: .*tirx.is_host_func"
    ):
        relax.build(model(histogram), target=models.H200, relax_pipeline="tvm_hopper")
    said = report(model(histogram), models.H200)
    assert [x.computed_by for x in said] == [NOBODY]


def test_a_function_for_the_host():
    func = histogram.with_attr("tirx.is_host_func", True)
    ex = relax.build(model(func), target=models.H200, relax_pipeline="tvm_hopper")
    assert [(x.computed_by, x.rule) for x in report(ex)] == [(GIVEN, "for the host")]


def record(by, operations, count=1):
    calls = (CallRecord("main", (), count),)
    why, flops = (("R", "why"),), f"rows * {operations}"
    return FunctionRecord("f", by, "r", flops=flops, calls=calls, refused=why)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], None),
        ([record(GIVEN, 10)], None),
        ([record(OURS, 10), record(STOCK, 80)], None),
        ([record(OURS, 10, 9), record(STOCK, 800)], None),
        ([record(OURS, 10), record(STOCK, 800)], "1% of its operations"),
        ([record(STOCK, 1)], r"0% of its operations .* \(f: R: why\)"),
    ],
)
def test_how_little_is_said(records, said):
    found = describe_little(tuple(records))
    assert found is None if said is None else re.match(said, found)
