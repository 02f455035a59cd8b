"""TVM's own schedules under the option, on both chips: each is what the page says of it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.ir.transform import PassContext
from tvm.tirx.compilation_pipeline import PIPELINE_MAP, register_tir_pipeline

from tvm_hopper import simulate, verify

from .catalogue import BY_NAME, SCHEDULES
from .judging import OURS, RUNS, STOCK, TARGETS, Judgement, judge
from .pipelines import notes, two_steps_of_any_length
from .products import index_maps
from .report import COLUMNS, document, judge_all

PAGE = Path(__file__).resolve().parents[2] / "docs" / "async_schedules.md"
HOW = "if meant: python -m tests.upstream > docs/async_schedules.md"
EACH = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda x: x.name)
TARGET = pytest.mark.parametrize("target", TARGETS)


def cell(name: str, column: str) -> str:
    """Return what the page says of a schedule."""
    found = [x for x in PAGE.read_text().splitlines() if x.startswith(f"| {name} |")]
    assert len(found) == 1, f"{name}: no row of its own on the page; {HOW}"
    return found[0].strip("| ").split(" | ")[2 + COLUMNS.index(column)]


def each_on_each_target():
    """List all; where TVM's own kernel is the same on both chips, judging it again is slow."""
    for target in TARGETS:
        for x in SCHEDULES:
            again = target == "sm_80" and cell(x.name, target).startswith("TVM's own")
            marks = [pytest.mark.slow] if again else []
            yield pytest.param(x, target, marks=marks, id=f"{target}-{x.name}")


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(("schedule", "target"), list(each_on_each_target()))
def test_a_schedule_is_what_the_page_says(schedule, target):
    found = judge(schedule, target, OURS)
    assert str(found) == cell(schedule.name, target), HOW
    assert found.is_right or not found.verdict


@pytest.mark.slow
@EACH
def test_tvms_own_kernel_is_what_the_page_says(schedule):
    assert str(judge(schedule, "sm_80", STOCK)) == cell(schedule.name, COLUMNS[0]), HOW


@pytest.mark.slow
def test_the_page_is_what_the_program_prints():
    assert PAGE.read_text() == document({x.name: judge_all(x) for x in SCHEDULES}), HOW


def test_what_tvm_builds_is_right_and_the_rest_has_a_reason():
    for schedule in SCHEDULES:
        stock, *ours = (cell(schedule.name, column) for column in COLUMNS)
        if stock.startswith("TVM's own"):
            assert all(text.endswith(": right") for text in ours), schedule.name
        assert all(text.endswith("right") or text == stock for text in ours), schedule.name
        assert (schedule.error in stock) if schedule.error else True, schedule.name


def test_the_page_counts_its_rows():
    for column in TARGETS:
        right = sum(cell(x.name, column).endswith(": right") for x in SCHEDULES)
        assert f"{column} {right}" in PAGE.read_text()
    assert f"Right, of {len(SCHEDULES)}:" in PAGE.read_text()


def test_a_wrong_kernel_is_no_right_one():
    assert not Judgement("TMA", "clean").is_right
    assert str(Judgement("no kernel")) == "no kernel"
    right = BY_NAME["two stages"]
    wrong = replace(right, plain=BY_NAME["three stages"].program)
    assert str(judge(wrong, "sm_80", OURS)) == "TVM's own: error"


@pytest.mark.slow
@TARGET
@pytest.mark.parametrize("columns", [1, 2, 16, 17])
def test_symbolic_extents(columns, target):
    func = two_steps_of_any_length(notes([0, 1], [0, 1]))
    a = np.random.default_rng(0).standard_normal((16, columns)).astype("float32")
    with PassContext(config=OURS):
        report = verify(func, {"A": a}, RUNS, target=TARGETS[target], against=func)
    assert report.verdict == "clean", str(report)


@pytest.mark.sampled(every=3)
@EACH
def test_without_the_option_the_text_is_tvms_own(schedule):
    if cell(schedule.name, COLUMNS[0]).startswith(("refused", "no kernel")):
        pytest.skip("TVM makes no kernel of it")
    if "stock" not in PIPELINE_MAP:
        register_tir_pipeline("stock", PIPELINE_MAP["s_tir"].gate_of)
    with index_maps(), warnings.catch_warnings():
        warnings.simplefilter("error")
        texts = [
            tvm.compile(schedule.program(), target=TARGETS["sm_80"], tir_pipeline=pipeline)
            .mod.imports[0]
            .inspect_source()
            for pipeline in ("s_tir", "stock")
        ]
    assert texts[0] == texts[1]


@EACH
def test_what_a_schedule_computes_is_known_where_there_is_a_kernel(schedule):
    has_kernel = ": " in cell(schedule.name, "sm_80") and not schedule.error
    assert (schedule.computes is not None) == has_kernel


def test_numpy_computes_what_the_plain_programs_do():
    for name in ("async producers interleaved", "padded by if_then_else", "interleaved"):
        schedule = BY_NAME[name]
        inputs = schedule.integers()
        found = simulate(
            schedule.program(), dict(zip("AB", inputs, strict=True)), target=TARGETS["sm_80"]
        )
        np.testing.assert_array_equal(found.outputs["C"], schedule.computes(*inputs))
