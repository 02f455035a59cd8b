"""MetaSchedule over `hs.matmul`: sampled tiles and a sampled last stage, without a GPU."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads
from tvm_hopper.testing.serial import run_serially

ROOT = Path(__file__).parents[2]


def sampled(mod):
    sch = s_tir.Schedule(mod)
    tile_m = sch.sample_categorical([64, 128], [0.5, 0.5])
    tile_n = sch.sample_categorical([32, 48], [0.5, 0.5])
    last_stage = sch.sample_categorical([0, 1, 2], [0.2, 0.4, 0.4])
    hs.matmul(sch, "C", hs.MatmulConfig((tile_m, tile_n, 64), consumers=1, stages=last_stage + 1))
    return sch


def decide(trace, mod, decisions):
    """Replay a trace with other decisions, as a tuner's mutation does."""
    samples = [i for i in trace.insts if i.kind.name == "SampleCategorical"]
    for inst, decision in zip(samples, decisions, strict=True):
        trace = trace.with_decision(inst, decision, True)
    sch = s_tir.Schedule(mod)
    trace.apply_to_schedule(sch, remove_postproc=True)
    return sch


@pytest.mark.parametrize("shape", [(128, 96, 64), (72, 40, 72)], ids=["exact", "ragged"])
def test_every_decision_gives_whole_tiles_and_the_right_result(shape):
    mod = workloads.matmul(*shape, out_dtype="float16", epilogue=("bias_col", "relu"))
    trace = sampled(mod).trace.simplified(remove_postproc=True)
    inputs = workloads.make_inputs(mod)
    want = workloads.reference(inputs, epilogue=("bias_col", "relu"))
    for m, n in itertools.product((0, 1), (0, 1)):
        sch = decide(trace, mod, (m, n, m + n))
        loops = [sch.get(x) for x in sch.get_loops("C_update_o")]
        assert [int(v) for v in loops[3].annotations["software_pipeline_stage"]] == [0, 0, m + n]
        (tile,) = sch.get(sch.get_sblock("C_update_o")).writes
        assert [int(r.extent) for r in tile.region] == [(64, 128)[m], (32, 48)[n]]
        np.testing.assert_array_equal(run_serially(sch.mod, inputs).astype("float64"), want)


def test_a_sample_leaves_no_trace_of_itself_in_the_module():
    sch = sampled(workloads.matmul(128, 96, 64))
    assert "tvm_hopper.sample" not in sch.mod.script()


def test_sampled_tile_equals_the_fixed_one():
    mod = workloads.matmul(128, 96, 64)
    sch = decide(sampled(mod).trace, mod, (1, 0, 2))
    fixed = s_tir.Schedule(mod)
    # a sampled tile leaves the number of tiles open, so that the device is asked
    config = hs.MatmulConfig((128, 32, 64), stages=3, consumers=1, raster=2, persistent=-1)
    hs.matmul(fixed, "C", config)
    tvm.ir.assert_structural_equal(sch.mod, fixed.mod)


def test_an_expression_of_a_sample_is_taken_at_its_present_value():
    sch = s_tir.Schedule(workloads.matmul(128, 128, 128))
    half = sch.sample_perfect_tile(sch.get_loops("C")[0], n=2, max_innermost_factor=64)[1]
    from tvm_hopper.schedule.steps import candidates

    assert candidates(sch, half) == [int(sch.get(half))]


@pytest.mark.slow  # test_replay.py has a fresh process, tests/meta_schedule what MetaSchedule tunes
def test_example_tunes_and_replays_in_a_fresh_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "examples/tune_without_gpu.py", "--trials", "8", "--work-dir", tmp_path],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "8 of 8 candidates lowered" in done.stdout
    replayed = done.stdout.split("replayed in a process of its own:")[1]
    assert "sch.sample_categorical(candidates=[64, 128, 256]" in replayed
    assert 'ann_key="tvm_hopper.wgmma"' in replayed
    assert (tmp_path / "database_tuning_record.json").stat().st_size > 0
