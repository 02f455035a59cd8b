"""benchmarks.memory_checks: configurations of many rows on few."""

from dataclasses import fields

import pytest

from benchmarks import memory, memory_checks

CASES = {
    "softmax": memory.Case("softmax", 4096, 131072),
    "gradient": memory.Case("rms_norm_backward", 87381, 4096),
    "sums": memory.Case("column_sum", 262144, 4096),
    "mean": memory.Case("mean", 262144, 4096),
    "elements": memory.Case("silu_mul", 24966, 14336),
    "images": memory.Case("group_norm", 65536, 8192),
}
LEFT_ALONE = {"blocks", "persistent"}  # that fewer rows have fewer of


@pytest.mark.parametrize("name", CASES)
def test_few_rows_have_the_configuration_of_many(name):
    case = CASES[name]
    mod, helper = memory_checks.module(case, case.rows)
    config = memory_checks.chosen(mod, helper)
    rows, small = memory_checks.fewer(case, config, helper)
    assert rows < case.rows / 8
    same = {x.name for x in fields(config)} - LEFT_ALONE
    assert all(getattr(config, x) == getattr(small, x) for x in same)
    memory_checks.scheduled(memory_checks.module(case, rows)[0], helper, small)


def test_a_case_is_built_and_verified():
    row = memory_checks.check(memory.Case("silu_mul", 512, 1024), 60.0)
    assert row["verdict"] == "clean"
    assert 0 < row["build, s"] < 60
