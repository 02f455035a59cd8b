"""What is in flight together, and what the caches are told of it."""

import re
from dataclasses import replace

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tvm_hopper import ir, schedule as hs
from tvm_hopper.cuda_build.disassembler import find_disassembler
from tvm_hopper.errors import ScheduleError
from tvm_hopper.requests import keys
from tvm_hopper.schedule.row_reduction.apply import chosen_rows
from tvm_hopper.testing import backward, columns, losses, memory_bound

RELOAD = hs.RowReductionConfig(reload=True)
STAYS = hs.RowReductionConfig(persistent=2, stage=True)


def hints(mod, config=None):
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=config)
    blocks = [x for kernel in ir.kernels(sch.mod["main"]) for x in ir.find_all(kernel, ir.SBlock)]
    return {x.annotations.get(keys.LOAD_HINT) for x in blocks} - {None}


@pytest.mark.parametrize(
    ("mod", "config", "want"),
    [
        (losses.argmax(65536, 1024), None, set()),  # nothing is stored that L2 could let go of
        (losses.argmax(65536, 1024), hs.RowReductionConfig(hint=True), {"evict_last"}),
        (losses.cross_entropy(4096, 32768), None, set()),
        (memory_bound.rms_norm(65536, 1024), None, {"evict_last"}),
        (memory_bound.rms_norm(65536, 1024), RELOAD, {"evict_first", "evict_last"}),
        (memory_bound.layer_norm(4096, 131072), None, {"evict_last"}),  # persistent clusters
        (memory_bound.layer_norm(64, 1024), STAYS, set()),  # what fits L2 is wanted there
        (memory_bound.layer_norm(64, 1024), replace(STAYS, hint=True), {"evict_last"}),
    ],
)
def test_hints_are_for_rows_that_are_stored(mod, config, want):
    assert hints(mod, config) == want


@pytest.mark.parametrize(
    ("mod", "config", "kept"),
    [
        (memory_bound.rms_norm(131072, 4096), None, (36 << 20) // (4096 * 2)),
        (memory_bound.softmax(524288, 1024), None, (36 << 20) // (4 * 1024 * 2)),  # four rows each
        (memory_bound.add_rms_norm(65536, 4096), None, (36 << 20) // (2 * 4096 * 2)),
        (memory_bound.layer_norm(16384, 32768), None, (36 << 20) // (4 * 32768 * 2)),  # clusters
        (memory_bound.rms_norm(32768, 4096), None, None),  # 256 MiB: L2 keeps much in any case
        (memory_bound.rms_norm("n", 4096), None, None),  # few rows, perhaps
        (memory_bound.rms_norm(64, 4096), None, None),
        (memory_bound.layer_norm(8192, 32768, "float32"), None, None),  # two tensors, met late
        (backward.cross_entropy_backward(131072, 4096), None, None),
        (memory_bound.rms_norm(131072, 4096), hs.RowReductionConfig(hint=False), None),
        (losses.argmax(65536, 1024), hs.RowReductionConfig(hint=True), None),  # a number a row
    ],
)
def test_the_end_of_rows_stays_in_l2(mod, config, kept):
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=config)
    (kernel,) = ir.kernels(sch.mod["main"])
    assert kernel.annotations.get(keys.KEPT_END) == kept


@pytest.mark.parametrize(
    ("mod", "config", "together"),
    [
        (memory_bound.rms_norm(131072, 4096), None, 2),  # 8 KiB of each thread block
        (memory_bound.rms_norm(262144, 2048), None, None),  # 4 KiB: 6% slower in pairs
        (memory_bound.softmax(524288, 1024), None, 2),  # four rows
        (memory_bound.rms_norm("n", 4096), None, None),  # there may be few
        (memory_bound.rms_norm(131073, 4096), None, None),  # one would be alone
        (memory_bound.rms_norm(16384, 32768), None, None),  # clusters already
        (memory_bound.rms_norm(64, 4096), None, None),
        (backward.cross_entropy_backward(131072, 4096), None, None),  # 4% slower so
        (memory_bound.rms_norm(131072, 4096), hs.RowReductionConfig(hint=False), None),
        (memory_bound.rms_norm(131072, 4096), hs.RowReductionConfig(together=1), None),
        (memory_bound.rms_norm(7, 4096), hs.RowReductionConfig(together=4, cluster=1), 4),
    ],
)
def test_thread_blocks_begin_in_pairs(mod, config, together):
    sch = s_tir.Schedule(mod)
    hs.row_reduction(sch, config=config)
    (kernel,) = ir.kernels(sch.mod["main"])
    assert kernel.annotations.get(keys.LAUNCHED_TOGETHER) == together


def test_a_choice_begins_together_again():
    sch = s_tir.Schedule(memory_bound.rms_norm(7, 4096))
    config = chosen_rows(sch, hs.RowReductionConfig(together=4, cluster=1))
    assert config.together == 4
    assert chosen_rows(sch, config) == config


@pytest.mark.parametrize("config", [{"cluster": 4}, {"cluster": 2, "stage": True}], ids=str)
def test_thread_blocks_that_share_rows_do_not_begin_together(config):
    sch = s_tir.Schedule(memory_bound.rms_norm(64, 32768))
    before = sch.mod
    size = config["cluster"]
    match = f"together=2 for rows of {size} thread blocks of a cluster; need one of the two; .*=1"
    with pytest.raises(ScheduleError, match=match):
        hs.row_reduction(sch, config=hs.RowReductionConfig(together=2, **config))
    assert sch.mod.same_as(before)


@pytest.mark.parametrize("columns_", [1024, 2048, 4096, 8192])
def test_a_vector_of_each_of_two_tensors(columns_):
    """Of a softmax's gradient: 0.4% to 3.3% less time than two or more of each on an H200."""
    config = chosen_rows(s_tir.Schedule(backward.softmax_backward(65536, columns_)))
    assert (config.threads, config.rows, config.reload) == (columns_ // 8, 1, False)


def test_rows_that_would_leave_threads_without_a_vector():
    config = chosen_rows(s_tir.Schedule(backward.softmax_backward(65536, 5120)))
    assert config.threads * config.vector < 5120


def in_flight(config):
    """Return the loads of a trip that the assembler puts in front of the first sum."""
    sch = s_tir.Schedule(columns.column_sum(65536, 2048))
    hs.column_reduction(sch, config=config)
    code = tvm_hopper.sass(tvm.compile(sch.mod, target="nvidia/nvidia-h200"))
    (first,) = [x for x in code.split(".section")[1:] if x.startswith("\t.text.main_kernel,")]
    names = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?([A-Z0-9]+)", first, re.M)
    start = names.index("LDG")
    return names[start : names.index("FADD", start)].count("LDG")


@pytest.mark.skipif(find_disassembler() is None, reason="no nvdisasm")
@pytest.mark.parametrize(
    ("config", "want"),
    [
        (hs.ColumnReductionConfig(), 8),
        (hs.ColumnReductionConfig(threads=512, rows=1), 8),
        (hs.ColumnReductionConfig(flight=16), 16),
    ],
    ids=["chosen", "512 threads", "16"],
)
def test_all_loads_of_a_trip_are_in_flight(config, want):
    """Without a bound on thread blocks of an SM ptxas takes 36 registers, and waits for each."""
    assert in_flight(config) == want
