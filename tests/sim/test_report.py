"""`Report.require_clean` and the refusal of a module that is lowered already."""

import pytest
import tvm
from tvm.script import tirx as T

from tvm_hopper.errors import HopperError, VerifyError
from tvm_hopper.sim.findings import RULES, Finding
from tvm_hopper.simulation import Report, simulate


def test_require_clean_returns_a_clean_report():
    report = Report(findings=(), runs=(), choices=())
    assert report.require_clean() is report


@pytest.mark.parametrize("severity", ["review", "incomplete", "error"])
def test_require_clean_raises_with_the_finding(severity):
    finding = Finding(rule=next(iter(RULES)), severity=severity, message="the slot is read early")
    report = Report(findings=(finding,), runs=(), choices=())
    with pytest.raises(VerifyError, match=rf"verification is {severity}, need clean(?s:.*)read e"):
        report.require_clean()


def test_module_that_is_packed_already_is_refused():
    @T.prim_func
    def main(a: T.handle):
        T.func_attr({"calling_conv": 1})
        T.evaluate(0)

    with pytest.raises(HopperError, match=r"module that is lowered already; need the scheduled"):
        simulate(tvm.IRModule({"main": main}), {})
