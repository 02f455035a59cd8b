"""Few rows: as many thread blocks as a thread has vectors reduce a row, and each stores a part."""

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from tests.sim_kernels.mutate import change
from tvm_hopper import explain, ir, schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import memory_bound

TARGET = "nvidia/nvidia-h200"


def scheduled(name, rows, columns, config=None):
    sch = s_tir.Schedule(getattr(memory_bound, name)(rows, columns))
    hs.row_reduction(sch, config=config)
    return sch


def parts_of(sch):
    (grid,) = {
        int(x.extent)
        for x in ir.find_all(sch.mod["main"].body, ir.For)
        if x.thread_binding is not None and str(x.thread_binding.thread_tag) == "blockIdx.y"
    } or {1}
    return grid


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("name", "rows", "columns", "parts"),
    [
        ("rms_norm", 1, 4096, 4),
        ("rms_norm", 9, 4096, 2),  # more than one for 16 SMs
        ("layer_norm", 2, 2048, 2),  # four would have less than four warps
        ("log_softmax", 2, 2048, 2),
    ],
    ids=str,
)
def test_several_thread_blocks_share_a_row(name, rows, columns, parts):
    sch = scheduled(name, rows, columns)
    assert parts_of(sch) == parts
    verify(sch, against=getattr(memory_bound, name)(rows, columns)).require_clean()


def test_explain_says_so():
    text = str(explain(scheduled("rms_norm", 8, 4096), TARGET))
    assert "4 thread blocks a row, each stores a part" in text


@pytest.mark.parametrize(
    ("name", "rows", "columns", "config"),
    [
        ("rms_norm", 67, 4096, None),  # more rows than SMs have halves
        ("rms_norm", 4, 1024, None),  # one vector a thread
        ("rms_norm", 4, 4104, None),  # a tail
        ("softmax", 4, 4096, None),  # exponentials wait in registers
        ("add_rms_norm", 4, 4096, None),  # the sum is stored, too, in front of the reduction
        ("row_mean", 4, 4096, None),  # one value a row
        ("rms_norm", 4, 4096, hs.RowReductionConfig(reload=False)),
    ],
    ids=str,
)
def test_others_have_a_thread_block_for_a_row(name, rows, columns, config):
    assert parts_of(scheduled(name, rows, columns, config)) == 1


def test_the_configuration_that_is_chosen_makes_the_same_kernel():
    from tvm_hopper.schedule.row_reduction.apply import chosen_rows

    sch = s_tir.Schedule(memory_bound.rms_norm(8, 4096))
    again = scheduled("rms_norm", 8, 4096, chosen_rows(sch))
    assert parts_of(again) == 4


@pytest.mark.parametrize("which", [0])
def test_without_the_barrier_the_simulator_objects(which):
    program = load(scheduled("rms_norm", 1, 4096))
    inputs = {"X": np.zeros((1, 4096), ml_dtypes.bfloat16), "W": np.ones(4096, ml_dtypes.bfloat16)}
    assert not simulate(program, inputs).findings
    found = simulate(change(program, "tvm_storage_sync", which), inputs).findings
    assert any(f.rule.startswith("RACE") for f in found), found
