"""Products beyond the plain one, verified against their plain programs; what sm_80 allows."""

import pytest

import tvm_hopper
from tvm_hopper.verification.verifier import RUNS

from .families.products import AMPERE, FP8, FP8_E5M2, MIXED, TMA_STORE
from .golden.common import Kernel
from .lowering import lower

FEW = (("on_wait", 0), ("random", 1))
ONE = (("on_wait", 0),)


def judge(kernel: Kernel, runs=FEW, **more):
    target = {"kind": "cuda", "arch": kernel.arch}
    return tvm_hopper.verify(kernel.func, runs=runs, target=target, against=kernel.against, **more)


CASES = [  # ragged, with a K tail; whole tiles, or less than one of them
    (AMPERE, {}),
    (AMPERE, {"m": 5, "n": 3, "k": 8, "stages": 4}),
    (TMA_STORE, {}),
    (MIXED, {}),
    (FP8, {}),
    (FP8_E5M2, {"m": 128, "n": 64, "k": 128}),
]
MORE = [
    (TMA_STORE, {"m": 128, "n": 64, "k": 64}),
    (MIXED, {"m": 128, "n": 64, "k": 128, "stages": 3}),
    (AMPERE, {"m": 64, "n": 64, "k": 128, "stages": 4}),
    (TMA_STORE, {"m": 70, "n": 40, "k": 8, "grid": 1}),
    (MIXED, {"m": 1, "n": 9, "k": 16}),
    (FP8, {"m": 128, "n": 64, "k": 128}),
    (FP8_E5M2, {"m": 130, "n": 66, "k": 144}),
    (AMPERE, {"m": 200, "n": 130, "k": 328, "stages": 4}),
    (TMA_STORE, {"m": 300, "n": 200, "k": 200, "grid": 3, "stages": 3}),
    (MIXED, {"m": 300, "n": 130, "k": 400, "stages": 3}),
    (FP8, {"m": 300, "n": 130, "k": 592, "stages": 3}),
]


def case_name(value):
    return value.name if hasattr(value, "name") else "-".join(map(str, value.values())) or "default"


def is_right(golden, sizes, runs=FEW):
    report = judge(golden.make(None, **{**golden.options, **sizes}), runs)
    assert [str(f) for f in report.findings] == []
    assert report.verdict == "clean"
    assert report.values.checked


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("golden", "sizes"), CASES, ids=case_name)
def test_is_clean_and_agrees_with_its_plain_program(golden, sizes):
    is_right(golden, sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("golden", "sizes"), MORE, ids=case_name)
def test_more_sizes_are_clean_and_agree(golden, sizes):
    is_right(golden, sizes, RUNS)


# Bugs that break no rule of synchronisation: the numbers alone show them.
WRONG = [(AMPERE, "A08"), (TMA_STORE, "T04"), (MIXED, "R04"), (FP8, "F02")]


@pytest.mark.parametrize(("golden", "bug"), WRONG, ids=lambda x: getattr(x, "name", x))
def test_a_wrong_number_is_a_wrong_value(golden, bug):
    report = judge(golden.build(bug), ONE)
    assert {f.rule for f in report.findings} == {"WRONG_VALUE"}
    assert report.verdict == "error"


# -- what sm_80 allows ----------------------------------------------------------------------------


def refused(kernel, arch="sm_80"):
    target = {"kind": "cuda", "arch": arch}
    report = tvm_hopper.verify(kernel.func, runs=ONE, target=target, against=False)
    return report.verdict, {(f.rule, f.message) for f in report.findings}


def test_163_kib_are_all_that_sm_80_has():
    kernel = AMPERE.make(None, stages=21)  # 8 KiB each
    verdict, found = refused(kernel)
    assert verdict == "error"
    text = "launch of main_kernel: found 172032 bytes of shared memory; need at most 166912"
    assert found == {("LAUNCH_LIMITS", text)}
    assert refused(kernel, "sm_90a") == ("clean", set())


def test_an_instruction_of_hopper_is_refused_for_sm_80():
    verdict, found = refused(FP8.build())
    assert verdict == "error"
    assert {rule for rule, _ in found} == {"TARGET_ARCH"}
    messages = {message for _, message in found}
    tail = "the kernel is built for sm_80"
    assert f"wgmma_fp8_ss needs sm_90a; {tail}" in messages
    assert f"cp_async_bulk_tensor_g2s_cluster needs sm_90; {tail}" in messages
    assert f"T.cuda.mbarrier_wait needs sm_90; {tail}" in messages


def test_limits_of_another_chip_are_not_guessed():
    verdict, found = refused(AMPERE.build(), "sm_86")
    text = "built for sm_86: its limits are not known, those of sm_90a were taken"
    assert (verdict, found) == ("incomplete", {("INCOMPLETE", text)})


def test_it_is_printed_for_sm_80():
    lowered = lower(AMPERE.build().func, "sm_80")
    assert lowered.arch == "sm_80"
    source = lowered.cuda_source()
    assert "mma.sync.aligned.m16n8k16" in source
    assert "cp.async.cg.shared.global" in source
