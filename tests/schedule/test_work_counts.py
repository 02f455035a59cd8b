"""A helper reads a program once, whatever it tries before it schedules it."""

import pytest
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.schedule.memory_bound import program
from tvm_hopper.schedule.products import model, recognize
from tvm_hopper.testing import backward, columns, memory_bound, workloads


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


@pytest.fixture
def counts(monkeypatch):
    """Return how often a product is recognised, and configurations are estimated."""
    found = {"matmul": 0, "contraction": 0, "estimate": 0}

    def count(module, name, label):
        function = getattr(module, name)

        def counted(*args, **more):
            found[label] += 1
            return function(*args, **more)

        monkeypatch.setattr(module, name, counted)

    count(recognize, "_check_initial_value", "matmul")  # of each product that is looked at anew
    count(recognize, "find_contraction", "contraction")
    count(model, "estimate", "estimate")
    model._rank_both.cache_clear()
    return found


def test_a_product_is_recognised_once(counts):
    hs.matmul(s_tir.Schedule(workloads.matmul(1024, 512, 256)), "C")
    assert counts == {"matmul": 1, "contraction": 5, "estimate": 6}


def test_a_product_with_pads_is_recognised_again_in_each_schedule(counts):
    hs.matmul(s_tir.Schedule(workloads.matmul(1000, 504, 264)), "C")
    assert counts["matmul"] <= 4
