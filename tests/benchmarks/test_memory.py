"""The cases of benchmarks.memory: what is moved, and that each is a program that we schedule."""

import pytest

from benchmarks import memory, memory_programs
from benchmarks.memory_programs import HEAD, PROGRAMS
from tvm_hopper.testing import memory_bound

ALL = memory.cases(2.0, [])
CASES = [case for case in ALL if case.program not in PROGRAMS]
OTHERS = [case for case in ALL if case.program in PROGRAMS]


def test_names_are_unique():
    assert len({case.name for case in ALL}) == len(ALL)


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


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_a_gradient_or_a_sum_moves_what_was_asked_for(case):
    program = PROGRAMS[case.program]
    params = list(program.build(case.rows, case.columns)["main"].params)
    assert len(params) == len(program.inputs) + len(program.outputs)
    shapes = {
        **dict.fromkeys("XYD", (case.rows, case.columns)),
        **dict.fromkeys("WS", (case.columns,)),
        **dict.fromkeys("RMLP", (case.rows,)),
        **dict.fromkeys("CQ", (case.rows, HEAD)),
        "T": (1,),
        "V": (case.columns, case.rows),
    }
    letters = program.inputs + program.outputs
    for letter, param in zip(letters, params, strict=True):
        want = shapes[letter]
        if case.program == "group_norm":
            want = memory_programs.shape_of(case.program, letter, case.rows, case.columns)
        assert tuple(int(x) for x in param.shape) == want, letter
    assert program.full == sum(x in memory_programs.WHOLE for x in letters)
    gib = 0.5 if case.program == "transpose" else 1.0  # a square
    assert 0.99 < program.full * case.rows * case.columns / 2**30 / gib <= 1
    assert program.reads_only == (program.full == 1)
