"""Kernels that begin while the launch in front of them ends: who asks, and that they are right."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx

from tests.sim_kernels.mutate import instructions
from tvm_hopper import ir, schedule as hs
from tvm_hopper.requests import keys
from tvm_hopper.schedule.row_reduction.apply import chosen_rows
from tvm_hopper.simulation import Program, load, simulate, verify
from tvm_hopper.testing import columns, memory_bound, neighbors


def asks(sch):
    loops = ir.find_all(sch.mod["main"].body, ir.For)
    return any(keys.EARLY_LAUNCH in x.annotations for x in loops)


@pytest.mark.parametrize(
    ("rows", "early", "wanted"),
    [
        *((1, None, True), (528, None, True), (529, None, False), ("n", None, False)),
        *((1, False, False), (4096, True, True)),
    ],
)
def test_few_rows_and_whoever_asks(rows, early, wanted):
    sch = s_tir.Schedule(memory_bound.rms_norm(rows, 4096))
    hs.row_reduction(sch, config=hs.RowReductionConfig(early_launch=early))
    assert asks(sch) == wanted


def test_a_choice_says_so_and_gives_the_same_again():
    mod = memory_bound.rms_norm(8, 4096)
    chosen = chosen_rows(s_tir.Schedule(mod))
    assert chosen.early_launch
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=chosen)
    assert asks(sch)


def test_both_kernels_of_a_reduction_of_columns_begin_early():
    sch = s_tir.Schedule(columns.column_sum(64, 128))
    hs.column_reduction(sch, config=hs.ColumnReductionConfig(blocks=2))
    assert str(sch.mod).count(keys.EARLY_LAUNCH) == 2


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_early_kernels_compute_the_same(arch):
    target = {"kind": "cuda", "arch": arch, "max_threads_per_block": 1024}
    for name, helper, config in (
        ("softmax", hs.row_reduction, hs.RowReductionConfig(early_launch=True)),
        ("copy", hs.pointwise, hs.PointwiseConfig(early_launch=True)),
    ):
        mod = getattr(memory_bound, name)(4, 512)
        sch = s_tir.Schedule(mod)
        helper(sch, config=config)
        if arch == "sm_90a":  # on sm_80 it is the kernel without early launch
            verify(sch, against=mod, runs=(("on_wait", 0),), target=target).require_clean()
        text = tvm.compile(sch.mod, target=target).mod.imports[0].inspect_source()
        assert ("griddepcontrol.wait" in text) == (arch == "sm_90a")


def test_a_transposition_begins_early_where_asked():
    sch = s_tir.Schedule(neighbors.transpose(64, 128, "bfloat16"))
    hs.pointwise(sch, config=hs.PointwiseConfig(early_launch=True))
    assert asks(sch)


TWO = partial(hs.column_reduction, config=hs.ColumnReductionConfig(blocks=2))  # kernels
EARLY = {
    "a kernel of few rows": (hs.row_reduction, memory_bound.rms_norm(4, 128), 0),
    "the first of sums of columns": (TWO, columns.column_sum(64, 128), 0),
    "the second": (TWO, columns.column_sum(64, 128), 1),
}


@pytest.mark.parametrize("name", EARLY)
def test_the_simulator_misses_the_wait(name):
    helper, mod, which = EARLY[name]
    sch = s_tir.Schedule(mod)
    helper(sch)
    program = load(sch)
    given = {k: np.ones(s, ml_dtypes.bfloat16) for k, s in _inputs(mod)}
    assert not simulate(program, given).findings
    kernel, func = list(program.kernels.items())[which]
    (wait,) = [x for x in instructions(func, "griddepcontrol") if "wait" in str(x)]
    body = ir.replace_nodes(func.body, tirx.Evaluate, {wait: ir.seq()})
    without = Program(program.host, {**program.kernels, kernel: func.with_body(body)})
    assert "GRID_DEPENDENCY" in {x.rule for x in simulate(without, given).findings}


def _inputs(mod):
    return [(p.name, [int(x) for x in p.shape]) for p in list(mod["main"].params)[:-1]]
