"""The judge finds what is planted: one case for each class."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import tvm_hopper
from tests.fuzz import arrays
from tests.fuzz.case import BUILD, Case, Outcome, Program, Step, View
from tests.fuzz.families.matmul import matmul_step
from tests.fuzz.judge import CLASSES, FAULTS, is_product, judge, planned
from tests.fuzz.planted import MATMUL, case, product, with_program, wrong
from tvm_hopper.sim import Finding

REFUSAL = 'raise tvm_hopper.{}("block C: found a batch; need none")'


def says(made: Case, kind: str, text: str = "", phase: str = "") -> Outcome:
    outcome = judge(made)
    assert (outcome.kind, text in outcome.text) == (kind, True), outcome
    assert phase in outcome.phase
    return outcome


def test_right():
    says(case(), "right")
    says(replace(case(), verify=True, cubin=True), "right")


def test_refused():
    says(case(matmul_step("C", {"tile": (65, 64, 64)})), "refused", phase="hs.matmul")
    says(Case(product(64, 64, 60), (MATMUL,)), "refused", "pad K to 64")


def test_stock_refused_and_invalid():
    says(case('sch.get_sblock("nothing")'), "stock-refused", phase="stock")
    unknown = "tvm.transform.PassContext(config={'my.key': 1})"
    says(case(build=unknown), "stock-refused", "PassContext", "build")
    says(case("sch.bind(missing, 'blockIdx.z')"), "invalid", "missing")
    says(with_program(case(), text="no module"), "invalid", phase="program")


def test_a_fault_of_a_program_that_stock_tvm_refuses_is_none():
    bad = product().text.replace("T.float32(0)", 'T.Cast("float32", T.erf(T.float16(0)))')
    made = Case(Program(bad), (Step("raise tvm_hopper.HopperError('oh')"),))
    says(made, "invalid")


def test_dot_products_are_a_product():
    kernel = SimpleNamespace(product=None, notes=("dot products: 32 threads a sum",))
    assert is_product(kernel)
    assert not is_product(SimpleNamespace(product=None, notes=("copies of rows",)))


def test_a_swizzle_is_that_of_the_operands():
    """A residual in a ring of its own has the widest."""
    widths = {"A": 64, "B": 64, "R": 128}
    kernel = SimpleNamespace(
        tensor_maps=[SimpleNamespace(tensor=k, swizzle=v) for k, v in widths.items()]
    )
    assert planned(kernel, "swizzle") == 64
    assert planned(kernel, "swizzle of R") == 128
    kernel.tensor_maps[0].swizzle = 32
    assert planned(kernel, "swizzle") == {32, 64}


def test_wrong():
    says(wrong(), "wrong", "4096 of 4096 differ")
    says(with_program(wrong(), exact=False), "wrong", "differ")


def test_an_inexact_result_may_be_off_by_a_rounding():
    assert not arrays.difference(np.float32([1.0001]), np.float32([1]), np.array([0.001]))
    assert "1 of 2 differ, first (1,)" in arrays.difference(
        np.float32([1, 1.01]), np.float32([1, 1]), np.array([0.001, 0.001])
    )
    assert arrays.difference(np.float32([np.nan]), np.float32([1]), np.array([1e9]))
    assert not arrays.difference(np.float32([np.nan]), np.float32([np.nan]), np.zeros(1))


def test_unclear():
    says(case("raise tvm_hopper.HopperError('it cannot be')"), "unclear", "no place")
    says(
        with_program(case(REFUSAL.format("ScheduleError")), untrue=("a batch",)),
        "unclear",
        "untrue of the program",
    )


def test_crash():
    says(case("hs.matmul(sch, 'C', 3).no"), "refused")
    says(case("hs.choose_config(64, 64, 64).no"), "crash", "AttributeError")
    says(case(build="raise tvm_hopper.VerifyError('k: found x; need y')"), "crash", "own check")
    says(case(build="[][1]"), "crash", "IndexError", "build")


def test_refused_late():
    says(case(build=REFUSAL.format("LoweringError")), "refused-late", phase="build")
    early = replace(case(build=REFUSAL.format("LoweringError")), judged_at_build="a reason")
    says(early, "refused")


def test_a_leftover_of_the_program_is_not_late_but_one_of_ours_is():
    found = "block {0}: found a store into {0} outside of every kernel; need threads"
    text = f'raise tvm_hopper.LoweringError("{found}")'
    says(case(build=text.format("C")), "refused")
    says(case(build=text.format("A_pad")), "refused-late")


def test_changed():
    unroll = "sch.annotate(sch.get_loops('C_update_o')[0], 'mykey', 1)"
    raised = 'raise tvm_hopper.ScheduleError("block C: found a batch; need none")'
    says(case(f"{unroll}; {raised}"), "changed")
    says(case(raised), "refused")


def test_silent_because_it_must_be_refused():
    annotate = "sch.annotate(sch.get_sblock('C_update_o'), 'mykey', 1)"
    says(case(Step(annotate, must_refuse="mykey is no key")), "silent", "mykey is no key")
    says(case(Step("hs.Roles(1)", must_refuse="a reason")), "silent", "a reason", "hs.Roles")
    says(with_program(case(), must_refuse="it cannot be"), "silent", "it cannot be")


def test_silent_because_a_request_is_dropped():
    says(case(Step("pass", {"stages": 3})), "silent", "asked for stages = 3, got 1")
    group = (Step("pass", {"raster_group": 1}), Step("pass", {"raster_group": 4}))
    made = case(*group)
    first = matmul_step("C", {"tile": (64, 64, 64), "stages": 1, "consumers": 1, "raster": 1})
    says(replace(made, steps=(first, *group)), "silent", "raster_group = 4, got 1")


def test_silent_because_nothing_is_noted():
    says(with_program(case(), must_note="what it does"), "silent", "says nothing of what it does")


def test_silent_without_wgmma():
    stock = (
        "x, y, *_ = sch.get_loops('C'); sch.bind(x, 'blockIdx.x'); sch.bind(y, 'threadIdx.x')",
        "sch.decompose_reduction('C', sch.get_loops('C')[2])",
    )
    small = product(16, 16, 16)
    says(Case(small, tuple(map(Step, stock))), "silent", "kernel of ours")
    says(Case(small, tuple(map(Step, stock)), kernels=0), "invalid")
    says(replace(case(), kernels=2), "silent", "1 kernels of 2")


def test_silent_host_code():
    outcome = judge(replace(_two_outputs(), build=BUILD))
    assert outcome.kind in ("silent", "refused"), outcome
    if outcome.kind == "silent":
        assert "on the device" in outcome.text


def _two_outputs() -> Case:
    text = product().text.rstrip() + (
        "\n        for i, j in T.grid(64, 64):\n"
        '            with T.sblock("S"):\n'
        '                vi, vj = T.axis.remap("SR", [i, j])\n'
        "                with T.init():\n"
        "                    S[vi] = T.float32(0)\n"
        "                S[vi] = S[vi] + X[vi, vj]\n"
    )
    more = ', X: T.Buffer((64, 64), "float32"), S: T.Buffer((64,), "float32")):'
    return Case(Program(text.replace("):", more, 1)), (MATMUL,))


def test_silent_overflow(monkeypatch):
    from tests.fuzz.judge import _OVERFLOW

    assert _OVERFLOW.search("int row = ((n + 63) >> 6) * 16777216;")
    assert not _OVERFLOW.search("x = ((n + 63) >> 6) * 64;")


def test_compile_error():
    text = 'raise tvm_hopper.CompileError("log: found C7517; need a wait")'
    says(case(build=text), "compile-error")


@pytest.mark.parametrize(
    ("finding", "kind"),
    [
        (Finding("RACE_WRITE_WRITE", "error", "two writes"), "simulator-alarm"),
        (Finding("INCOMPLETE", "incomplete", "what is new"), "simulator-gap"),
    ],
)
def test_a_verdict_that_is_not_clean(monkeypatch, finding, kind):
    simulate = tvm_hopper.simulate

    def spoiled(*args, **kwargs):
        return replace(simulate(*args, **kwargs), findings=(finding,))

    monkeypatch.setattr(tvm_hopper, "simulate", spoiled, raising=False)
    says(case(), kind, finding.rule)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("Mismatched D.dtype"), "simulator-alarm"),
        (tvm_hopper.VerifyError("found call f; need one that is modelled"), "simulator-gap"),
        (TypeError("len() of unsized object"), "crash"),
    ],
)
def test_a_simulator_that_raises(monkeypatch, error, kind):
    def broken(*args, **kwargs):
        raise error

    monkeypatch.setattr(tvm_hopper, "simulate", broken, raising=False)
    says(case(), kind)


def test_an_output_that_is_written_in_part_keeps_the_rest():
    half = product().text.replace("T.grid(64, 64, 64)", "T.grid(32, 64, 64)")
    half = half.replace("T.axis.spatial(64, i)", "T.axis.spatial(32, i)")
    reference = arrays.reference(Program(half))
    assert (reference.outputs["C"][32:] == reference.inputs["C"][32:]).all()
    assert "C" not in arrays.reference(product()).inputs


def test_a_sum_over_nothing_is_its_initial_value():
    text = product().text.replace("T.func_attr", "depth = T.int32()\n        T.func_attr", 1)
    text = text.replace('(64, 64), "float16"', '(64, depth), "float16"')
    text = text.replace("T.grid(64, 64, 64)", "T.grid(64, 64, depth)")
    text = text.replace("T.axis.reduce(64, k)", "T.axis.reduce(depth, k)")
    reference = arrays.reference(Program(text, extents={"depth": 0}))
    assert not reference.outputs["C"].any()
    assert arrays.reference(Program(text, extents={"depth": 8})).outputs["C"].any()


def test_a_program_that_stock_tvm_refuses_with_its_strides_is_no_fault():
    strided = product().text.replace('"float16")', '"float16", strides=[T.int64(64), 1])', 1)
    made = Case(Program(strided, compact=product().text), (Step("[][1]; hs.Roles(1)"),))
    assert judge(made).kind in ("invalid", "crash")


def test_elements_around_a_view_must_stay():
    from tests.fuzz.judge import _outside

    view = View((10, 1), 3)
    inside, base = arrays.lay_out(np.ones((2, 8), "float32"), view, -77)
    before = base.copy()
    inside[...] = 5
    assert _outside("C", inside, base, before, view) == ""
    base[0] = 1
    base[12] = 1
    assert "2 elements outside of C" in _outside("C", inside, base, before, view)


def test_every_class_has_a_meaning():
    assert set(FAULTS) < set(CLASSES)
    assert all(CLASSES.values())
