"""The cases of benchmarks.memory: what is moved, and that each is a program that we schedule."""

from __future__ import annotations

import pytest

from benchmarks import memory
from tvm_hopper.testing import memory_bound

CASES = memory.cases(2.0, [])


def test_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


def test_cases_are_chosen_by_name():
    assert {case.program for case in memory.cases(2.0, ["gelu"])} == {"gelu_mul"}
    assert [case.rows for case in memory.cases(2.0, ["rms_norm 1 x"])] == [1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_moves_what_was_asked_for(case):
    func = getattr(memory_bound, case.program)(case.rows, case.columns, case.dtype)["main"]
    names = [param.name for param in func.params]
    assert "".join(names).startswith(memory.INPUTS[case.program])
    full = [p for p in func.params if len(p.shape) == 2]
    assert len(full) == memory.FULL_TENSORS.get(case.program, 2)
    moved = memory.SIZES[case.dtype] * len(full) * case.rows * case.columns
    if not case.is_small and case.rows != 10007:
        assert 0.99 < moved / 2**31 <= 1


def test_small_cases_are_those_of_few_rows():
    assert [case.rows for case in CASES if case.is_small] == list(memory.SMALL)
