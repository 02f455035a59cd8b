"""The second set of operators: what each changes, and a sample of its mutants."""

import functools

import pytest

from tests.mutants.equivalence import reason
from tests.mutants.judging import Outcome, judge, right_outputs
from tests.mutants.kernels import MAKERS_OF_ROWS, subject
from tests.mutants.places import changed_place
from tests.mutants.report import diff
from tests.mutants.runner import CRASH, KILLED, SURVIVOR, draw, examine, sites_of
from tests.mutants.test_equivalence import LOAD, STORE, op, warps


@functools.cache
def sample():
    return draw(24, seed=2026, operators="places")


@pytest.mark.parametrize("part", range(2))
def test_no_mutant_of_a_sample_survives(part):
    verdicts = [examine(mutant) for mutant in sample()[part::2]]
    left = [v for v in verdicts if v.kind in (SURVIVOR, CRASH)]
    assert not left, "\n".join(f"{v.kind} {v.kernel}: {v.site}\n{v.why}\n{diff(v)}" for v in left)
    assert any(v.kind == KILLED for v in verdicts)


@pytest.mark.parametrize("name", MAKERS_OF_ROWS)
def test_the_reductions_are_clean(name):
    kernel = subject(name)
    assert judge(kernel, kernel.program, right_outputs(kernel)) == Outcome("")


@pytest.mark.parametrize(
    ("kind", "change", "text"),
    [
        ("left out, one lane", "in lane 31", "if not threadIdx_x & 31 == 31:"),
        ("left out, one warp", "in last warp", "if not threadIdx_x >> 5 == 11:"),
        ("left out, one CTA", "in last CTA", "if not (blockIdx_x == 1 and clusterCtaIdx_x == 1):"),
        ("left out, one iteration", "in middle iteration", "if not k == 1:"),
        ("parity, one iteration", "in last iteration", "T.Select(k == 2, "),
        (
            "coordinate, one CTA",
            "in first CTA",
            "T.Select(blockIdx_x == 0 and clusterCtaIdx_x == 0, ",
        ),
        ("beside the region", "below", " - 6160"),
        ("early lane", "next first in lane 0", "if threadIdx_x & 31 == 0:"),
    ],
)
def test_a_change_is_at_one_place(kind, change, text):
    sites = [s for s in sites_of("cluster", "places") if (s.kind, s.change) == (kind, change)]
    device = subject("cluster").device
    assert sites
    assert any(text in changed_place(device, s).script() for s in sites[:40]), kind


def test_a_register_below_its_array_is_found():
    """As a number of an operand, where Python would count from the end."""
    site = next(
        s
        for s in sites_of("matmul", "places")
        if s.kind == "beside the region" and s.change == "below" and "descriptor_a" in s.where
    )
    verdict = examine(("matmul", site))
    assert (verdict.judge, verdict.why) == ("simulator", "OOB_ACCESS")


def load(index, count):
    return op("load", **{"0": 0, "1": index, "2": "float32", "3": count, "4": 1, "5": "None"})


def store(lanes, value):
    return op("store", lanes, **{"0": 0, "1": 4, "2": ((), "float32", value)})


def two_lanes(value):
    places = ((2,), "int64", (4).to_bytes(8, "little") + (8).to_bytes(8, "little"))
    return op("store", (0, 1), **{"0": 0, "1": places, "2": value, "3": "int32", "4": 1, "5": 1})


EARLY = op("griddepcontrol", **{"0": "{'action': 'launch_dependents'}"})
END = op("griddepcontrol", **{"0": "{'action': 'wait'}"})


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ([store((0,), b"a")], [store((0, 31), b"a")], "one value by any lanes"),
        ([store((0,), b"a")], [store((0, 31), b"b")], ""),
        ([STORE, load(2, 2)], [STORE, load(2, 1), load(3, 1)], "element by element"),
        ([load(2, 2)], [load(2, 1), load(4, 1)], ""),
        ([two_lanes(7)], [two_lanes(7), two_lanes(7)], "element by element"),
        ([two_lanes(7), two_lanes(8)], [two_lanes(7), two_lanes(8), two_lanes(7)], ""),
        ([load(2, 2)], [load(2, 1)], ""),
        ([EARLY, LOAD], [LOAD], "a hint"),
        ([END, LOAD], [LOAD], ""),
    ],
)
def test_rules_about_lanes_and_launches(before, after, rule):
    assert reason(warps(before), warps(after)) == rule
