"""A helper reads a program once, whatever it tries before it schedules it."""

from __future__ import annotations

import pytest
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.schedule.memory_bound import program
from tvm_hopper.testing import backward, columns, memory_bound


@pytest.fixture
def checked(monkeypatch):
    """Return the names of blocks that are checked, in order."""
    names = []
    check = program._check_statement
    monkeypatch.setattr(
        program,
        "_check_statement",
        lambda where, part: (names.append(part.name), check(where, part)),
    )
    return names


@pytest.mark.parametrize(
    ("helper", "function"),
    [
        (hs.row_reduction, memory_bound.softmax(1 << 14, 4096)),
        (hs.row_reduction, memory_bound.layer_norm(8192, 65536)),  # a persistent kernel
        (hs.row_reduction, memory_bound.add_rms_norm(2048, 131072)),  # in clusters
        (hs.pointwise, memory_bound.silu_mul(1 << 14, 4096)),
    ],
    ids=["softmax", "layer_norm", "add_rms_norm", "silu_mul"],
)
def test_each_block_of_a_program_is_checked_once(helper, function, checked):
    helper(s_tir.Schedule(function))
    assert checked
    assert len(set(checked)) == len(checked)


def test_what_is_left_of_sums_of_columns_is_checked_where_it_is_made(checked):
    """A copy and the schedule itself each have blocks of their own for partial sums."""
    hs.column_reduction(s_tir.Schedule(columns.column_sum(1 << 14, 4096)))
    assert checked == ["S", "Y"] * 3
    checked.clear()
    hs.row_reduction(s_tir.Schedule(backward.rms_norm_backward(1 << 14, 4096)))
    assert {checked.count(x) for x in set(checked)} <= {1, 3}
