"""Softmax by shuffles, by clusters, and split-K with a semaphore: clean, with values compared.

`verify(func, against=...)` has to be clean for sizes that divide and sizes that do not, and a wrong
number has to be a wrong value.
"""

import numpy as np
import pytest

import tvm_hopper
from tvm_hopper.verification.verifier import RUNS

from .families.memory_kernels import MUTATIONS
from .golden import softmax_block, softmax_cluster, softmax_push, softmax_warp, splitk_reduce

FEW = (("on_wait", 0), ("random", 1))
STATE = ("W", "S")  # a workspace and a counter: what they hold at entry is part of the kernel


def judge(kernel, runs=FEW, budget_s=120.0, **more):
    """Verify a kernel against its plain program."""
    given = {name: kernel.inputs[name] for name in STATE if name in kernel.inputs}
    return tvm_hopper.verify(
        kernel.func, {**given, **more}, runs=runs, against=kernel.against, budget_s=budget_s
    )


def require_clean(report, outputs):
    """Require the verdict, and that every output was compared."""
    assert report.verdict == "clean", str(report)
    assert report.values.checked
    for name in outputs:
        assert f"elements of {name}" in report.values.text


SOFTMAX = [
    (softmax_warp, {}),
    (softmax_warp, {"rows": 5, "columns": 33, "dtype": "float16", "warps": 4}),
    (softmax_warp, {"rows": 301, "columns": 130, "warps": 4}),
    (softmax_block, {"rows": 5, "columns": 33, "dtype": "float16", "warps": 4}),
    (softmax_block, {"rows": 301, "columns": 130, "warps": 2, "grid": 132}),
    (softmax_cluster, {"rows": 3, "columns": 250, "warps": 2, "clusters": 2}),
    (softmax_cluster, {"size": 8, "columns": 70, "by": "lanes"}),
    (softmax_push, {"by": "copy", "size": 8, "columns": 65, "dtype": "float16"}),
    (softmax_push, {"by": "store", "rows": 3, "columns": 3}),
]


def name_of(case):
    module, options = case
    words = [str(value) for value in options.values()]
    return " ".join([module.__name__.rpartition(".")[2], *words])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", SOFTMAX, ids=name_of)
def test_softmax_is_clean_and_right(case):
    module, options = case
    require_clean(judge(module.build(**options)), "Y")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        (softmax_warp, {"rows": 64, "columns": 1024, "dtype": "float16", "warps": 4}),
        (softmax_warp, {"rows": 1, "columns": 1, "warps": 1}),
        (softmax_cluster, {"columns": 9, "dtype": "float16"}),
        (softmax_cluster, {"size": 8, "columns": 515, "warps": 2}),
        (softmax_push, {"by": "store", "size": 8, "columns": 300}),
        (softmax_block, {"rows": 64, "columns": 2048, "warps": 8, "grid": 64}),
        (softmax_cluster, {"rows": 8, "columns": 4099, "size": 8, "warps": 4, "clusters": 3}),
        (softmax_push, {"rows": 8, "columns": 4099, "size": 8, "clusters": 3}),
    ],
    ids=name_of,
)
def test_larger_softmax_is_clean_and_right(case):
    module, options = case
    require_clean(judge(module.build(**options), RUNS), "Y")


@pytest.mark.parametrize(
    "options",
    [{"order": "turns"}, {"order": "last", "splits": 5, "k": 13}],
    ids=str,
)
def test_split_k_is_clean_and_right(options):
    require_clean(judge(splitk_reduce.build(**options)), "WSY")


def test_two_hundred_ctas_hear_of_each_other():
    """All of them run, as one group, and the values are of all."""
    kernel = splitk_reduce.build(splits=200, k=421, warps=1)
    report = judge(kernel, FEW[:1])
    require_clean(report, "WSY")
    assert "ran main_kernel: 200 of 200 CTAs" in str(report)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["last", "turns"])
def test_two_hundred_ctas_under_every_schedule(order):
    kernel = splitk_reduce.build(order=order, splits=200, k=613)
    require_clean(judge(kernel, RUNS, budget_s=600.0), "WSY")


# wrong numbers in any run, whatever the inputs; of S07 only where exp overflows
WRONG = ("S01", "C05", "C14", "K09")


@pytest.mark.parametrize("id", WRONG)
def test_a_wrong_coordinate_is_a_wrong_value(id):
    (mutation,) = (m for m in MUTATIONS if m.id == id)
    report = judge(mutation.build(), FEW[:1])
    assert "WRONG_VALUE" in {one.rule for one in report.findings}, str(report)


def test_a_maximum_that_is_not_subtracted_shows_in_numbers_that_are_drawn_and_given():
    kernel = softmax_warp.build("S07")  # exp of small numbers is as good
    for given in ({}, {"X": kernel.inputs["X"]}):
        found = {one.rule for one in judge(kernel, FEW[:1], **given).findings}
        assert found == {"WRONG_VALUE"}


def test_every_kind_has_its_bugs():
    for kind, least in {"S": 15, "C": 21, "K": 15}.items():
        assert sum(m.id.startswith(kind) for m in MUTATIONS) >= least


def test_the_inputs_make_the_maximum_matter():
    x = softmax_warp.build().inputs["X"]
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(x)).any()
    assert (x.max(1) < 0).any()
