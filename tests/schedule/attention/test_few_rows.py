"""Attention of few rows: keys in parts whose sums are merged, heads that share keys packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tests.schedule.attention.programs import Case, program, reference, run, values
from tests.schedule.attention.test_attention import H200, scheduled
from tests.schedule.attention.test_online import CASES, SMALL
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.simulation import verify

DECODE = Case(h=4, kv=1, d=32, v=32, n=1, m=80)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("causal", {"splits": 3}),
        ("ragged", {"splits": 2}),
        ("bias", {"splits": 2}),
        ("empty_rows", {"splits": 2}),
        ("empty_rows_finite", {"splits": 2}),
        ("empty_rows_lowest", {"splits": 2}),
        ("grouped", {"packs": True}),
        ("one_kv_head", {"packs": True, "splits": 2}),
        ("by_rows_first", {"packs": True}),
    ],
)
def test_values_of_the_form(name, options):
    """Parts without a key, and more parts than steps of a tile, too."""
    case = CASES[name]
    given = values(case)
    got, _ = run(hs.online(program(case), *SMALL, **options), case, given)
    want, _ = reference(case, given)
    np.testing.assert_allclose(got, want, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("name", ["log_sum", "sink"])
def test_parts_of_a_program_that_needs_all_keys(name):
    with pytest.raises(ScheduleError, match="found splits=2 of a program with a sink or a second"):
        hs.online(program(CASES[name]), splits=2)


def test_refused_arguments():
    with pytest.raises(ScheduleError, match="online: found splits=0; need 1 or more"):
        hs.online(program(DECODE), splits=0)
    with pytest.raises(ScheduleError, match="online: found packs=2; need a bool"):
        hs.online(program(DECODE), packs=2)


def test_a_step_of_decoding_is_verified():
    """The four heads of the queries are rows of one tile."""
    config = {"tile": (64, 32), "consumers": 1, "splits": 2}
    report = verify(scheduled(DECODE, **config).mod, against=program(DECODE), target=H200)
    assert report.verdict == "clean", str(report)
    assert report.values.checked


def test_parts_that_are_merged_without_their_weights():
    case = replace(DECODE, h=1)
    func = hs.online(program(case), (64, 32), 1, splits=2)["main"]
    text = func.script()
    (line,) = [x for x in text.splitlines() if "sum[0] = sum[0] + " in x]
    wrong = line.replace(line[line.index("T.exp2(") : line.rindex("parts[")], "")
    sch = s_tir.Schedule(tvm.script.from_source(text.replace(line, wrong)))
    hs.attention(sch, hs.AttentionConfig(tile=(64, 32), consumers=1, splits=2))
    report = verify(sch.mod, against=program(case), runs=[("on_wait", 0)], target=H200)
    assert {x.rule for x in report.findings} == {"WRONG_VALUE"}, str(report)
