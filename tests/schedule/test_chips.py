"""Each part of compute capability 9.0 gets a choice of its own for kernels bound by memory."""

import pytest
import tvm
from tvm import s_tir
from tvm.target import Target

from tvm_hopper import capture, schedule as hs
from tvm_hopper.facts.devices import CHIPS, Chip
from tvm_hopper.schedule.column_reduction.apply import chosen_columns
from tvm_hopper.schedule.memory_bound.estimate import MemoryModel
from tvm_hopper.schedule.memory_bound.work import RowWork
from tvm_hopper.schedule.pointwise.apply import chosen_elements
from tvm_hopper.schedule.row_reduction.apply import chosen_rows
from tvm_hopper.testing import backward, columns, memory_bound

WORK = RowWork(1 << 17, 4096, 8, loaded=2, shared=2, kept=0, reductions=1)


def rows_on(part, program):
    with Target(f"nvidia/nvidia-{part}"):
        return chosen_rows(s_tir.Schedule(program))


def test_an_sm_s_share_of_memory_follows_from_the_data_sheet():
    """H20: 4.0 TB/s for 78 SMs, 51 GB/s each; an H200's have 36, an H100 PCIe's 18."""
    shares = {part: round(chip.memory_share, 2) for part, chip in CHIPS.items()}
    assert shares == {
        "h200": 1.0,
        "h100-sxm": 0.7,
        "h100-pcie": 0.48,
        "h800": 0.7,
        "h20": 1.41,
        "gh200": 0.83,
    }


def test_more_bytes_in_flight_are_needed_where_sms_have_more_of_memory():
    blocks = {part: MemoryModel(chip).enough_blocks(8 << 10) for part, chip in CHIPS.items()}
    assert blocks["h20"] > blocks["h200"] == 8 > blocks["h100-sxm"] > blocks["h100-pcie"]
    # Rounded up, but no more than where memory is faster: one thread block alone would wait.
    blocks = {part: MemoryModel(chip).enough_blocks(32 << 10) for part, chip in CHIPS.items()}
    assert blocks["gh200"] == blocks["h200"] == 2
    assert blocks["h100-pcie"] == 1


def test_what_outgrows_l2_depends_on_its_size():
    between = 55 << 20
    assert MemoryModel(CHIPS["h200"]).outgrows_cache(between)
    assert not MemoryModel(CHIPS["h20"]).outgrows_cache(between)
    assert MemoryModel(Chip()).outgrows_cache(None)


def test_thread_blocks_on_an_sm():
    """RMSNorm: as many as hide the latency of an SM's share of memory."""
    program = memory_bound.rms_norm(1 << 16, 4096)
    found = {part: rows_on(part, program).blocks for part in ("h20", "h200", "h100-pcie")}
    assert found["h20"] > found["h200"] > found["h100-pcie"]


def test_few_rows_are_few_for_the_sms_that_there_are():
    program = memory_bound.rms_norm(400, 4096)
    assert rows_on("h200", program).early_launch
    assert not rows_on("h20", program).early_launch


@pytest.mark.parametrize(
    ("part", "clusters", "size"), [("h200", 15, 8), ("h100-pcie", 12, 8), ("h20", 8, 8)]
)
def test_persistent_clusters_are_as_many_as_run_at_once(part, clusters, size):
    chosen = rows_on(part, memory_bound.layer_norm(4096, 131072))
    assert (chosen.persistent, chosen.cluster) == (clusters, size)


def test_clusters_of_sixteen_are_for_chips_that_hold_several():
    program = memory_bound.layer_norm(2048, 262144, "float16")
    found = {part: rows_on(part, program).cluster for part in ("h200", "gh200", "h20")}
    assert found == {"h200": 16, "gh200": 16, "h20": 8}


@pytest.mark.parametrize("part", ["h20", "h100-pcie"])
def test_gradients_have_a_thread_block_for_each_sm(part):
    chosen = rows_on(part, backward.rms_norm_backward(10922, 16384))
    blocks = chosen.persistent * (chosen.cluster or 1)
    assert blocks % CHIPS[part].num_sms == 0


def test_elementwise_kernels_have_more_vectors_where_sms_have_more_of_memory():
    found = {}
    for part in ("h20", "h200"):
        with Target(f"nvidia/nvidia-{part}"):
            found[part] = chosen_elements(s_tir.Schedule(memory_bound.copy(1 << 15, 4096)))
    assert (found["h20"].chunks, found["h200"].chunks) == (2, 1)


def test_sums_of_columns_fill_the_chip_once():
    found = {}
    for part, chip in CHIPS.items():
        with Target(f"nvidia/nvidia-{part}"):
            chosen = chosen_columns(s_tir.Schedule(columns.column_sum(1 << 17, 4096)))
        found[part] = chosen.blocks * (4096 // (chosen.threads * chosen.vector)) / chip.num_sms
    assert set(found.values()) == {4.0}


@pytest.mark.parametrize("part", ["h20", "h100-pcie"])
@pytest.mark.parametrize(
    "program",
    [memory_bound.rms_norm(1 << 15, 4096), memory_bound.layer_norm(4096, 131072)],
    ids=["rms_norm", "layer_norm"],
)
def test_what_is_chosen_builds_without_spills(part, program):
    sch = s_tir.Schedule(program)
    with Target(f"nvidia/nvidia-{part}"):
        hs.row_reduction(sch)
    built = tvm.compile(sch.mod, target=f"nvidia/nvidia-{part}")
    (facts,) = capture.lookup(built).compile().kernels.values()
    assert (facts.stack_bytes, facts.spill_store_bytes, facts.spill_load_bytes) == (0, 0, 0)
