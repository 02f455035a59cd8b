"""Traces replay in a process that did nothing but `import tvm`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tvm_hopper import schedule as hs
from tvm_hopper.testing import backward, columns, memory_bound, workloads
from tvm_hopper.testing.forms import FORMS

BOUNDS = (4, 64)
TARGET = {"kind": "cuda", "arch": "sm_90a", "max_shared_memory_per_block": 232448}

CASES = {
    "exact": ({"m": 512, "n": 512, "k": 256}, hs.MatmulConfig()),
    "symbolic": (
        {
            "m": "m",
            "n": 1000,
            "k": 72,
            "batch": True,
            "index": "int64",
            "layout": "NN",
            "cast_stage": True,
            "out_dtype": "float16",
            "epilogue": ("bias_col", "silu", "residual"),
        },
        hs.MatmulConfig(swizzle=64, consumers=2, registers=(40, 232), wgmma_pending=1, raster=4),
    ),
    "narrow": (
        {"m": 72, "n": 40, "k": 72, "acc_dtype": "float16", "cast": "none", "out_dtype": "float16"},
        hs.MatmulConfig((64, 64, 64), stages=1, consumers=1, accumulate="float32"),
    ),
}

REPLAY = """
import json, sys
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

folder = sys.argv[1]
for name in json.load(open(f"{folder}/names.json")):
    mod, want, trace = (open(f"{folder}/{name}.{part}").read() for part in ("mod", "want", "trace"))
    mod, want = tvm.ir.load_json(mod), tvm.ir.load_json(want)
    sch = Schedule(mod)
    Trace.apply_json_to_schedule(tvm.ir.load_json(trace), sch)
    tvm.ir.assert_structural_equal(sch.mod, want)

    database = __import__("tvm.s_tir.meta_schedule").s_tir.meta_schedule.database.JSONDatabase(
        f"{folder}/{name}.workload", f"{folder}/{name}.record"
    )
    target = tvm.target.Target(json.load(open(f"{folder}/target.json")))
    found = database.query_schedule(mod, target, "main")
    tvm.ir.assert_structural_equal(found.mod, want)
assert "tvm_hopper.schedule" not in sys.modules, "the helpers were imported"
print("replayed")
"""


def test_every_trace_replays_where_only_tvm_is_imported(tmp_path):
    for name, (options, config) in CASES.items():
        begin = mod = workloads.matmul(**options)
        sch = s_tir.Schedule(mod)
        if name == "symbolic":  # a kernel for each size class: a trace begins with the branches
            begin = hs.size_classes(mod, "C", BOUNDS)
            hs.matmul(sch, "C", classes=dict.fromkeys(BOUNDS, config))
        else:
            hs.matmul(sch, "C", config)
        (tmp_path / f"{name}.mod").write_text(tvm.ir.save_json(begin))
        (tmp_path / f"{name}.want").write_text(tvm.ir.save_json(sch.mod))
        (tmp_path / f"{name}.trace").write_text(tvm.ir.save_json(sch.trace.as_json()))
        database = ms.database.JSONDatabase(
            str(tmp_path / f"{name}.workload"), str(tmp_path / f"{name}.record")
        )
        workload = database.commit_workload(begin)
        target = tvm.target.Target(TARGET)
        database.commit_tuning_record(ms.database.TuningRecord(sch.trace, workload, [1e-3], target))
    (tmp_path / "names.json").write_text(json.dumps(list(CASES)))
    (tmp_path / "target.json").write_text(json.dumps(TARGET))
    environment = {**os.environ, "TVM_HOPPER_AUTOLOAD": "0"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "replayed"


def by_matmul(config=None):
    return lambda sch: hs.matmul(sch, "C", config)


SMALL = hs.MatmulConfig(tile=(64, 64, 64), stages=2, consumers=1)
STREAM = hs.MatmulConfig((64, 64, 64), persistent=8, split_k="stream")
REPLAYED = {  # the program, and what schedules it
    **{name: (workloads.matmul(**x), by_matmul(config)) for name, (x, config) in CASES.items()},
    **{
        name: (FORMS[name](100, 104, 72, "float16"), by_matmul(SMALL))
        for name in (
            "slices",
            "bias_first",
            "two_outputs",
            "beta",
            "in_place",
            "one_row",
            "matrix_vector",
        )
    },
    "stream-K": (workloads.matmul(320, 256, 512), by_matmul(STREAM)),
    "LayerNorm": (memory_bound.layer_norm(8, 256), hs.row_reduction),
    "elements": (memory_bound.sum_and_difference(7, 101), hs.pointwise),
    "columns": (columns.batch_moments(64, 72), hs.column_reduction),
    "all": (columns.mean(64, 72), hs.column_reduction),
    "rows and columns": (backward.layer_norm_backward(64, 72), hs.row_reduction),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", REPLAYED)
def test_every_trace_replays_here(name):
    """As it is and as JSON, and without what a tuner takes out of it."""
    mod, schedule = REPLAYED[name]
    sch = s_tir.Schedule(mod)
    schedule(sch)
    ways = [
        lambda x: sch.trace.apply_to_schedule(x, remove_postproc=False),
        lambda x: Trace.apply_json_to_schedule(sch.trace.as_json(), x),
    ]
    if name in CASES:
        simple = sch.trace.simplified(remove_postproc=True)
        ways.append(lambda x: simple.apply_to_schedule(x, remove_postproc=False))
    for replay in ways:
        again = s_tir.Schedule(hs.normalize(mod))
        replay(again)
        tvm.ir.assert_structural_equal(again.mod, sch.mod)


MADE = """
from tvm import s_tir
from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads

options = dict(epilogue=("bias_row", "silu", "residual"), out_dtype="float16")
sch = s_tir.Schedule(workloads.matmul("m", 1000, 72, **options))
hs.matmul(sch, "C", classes=(16, 256))
text = f"{sch.trace}{sch.mod.script()}"
"""


def test_equal_schedules_come_out_of_two_processes():
    """The order of a trace must not hang on hashes of strings, which this process has others of."""
    here: dict[str, str] = {}
    exec(MADE, here)
    root = str(Path(hs.__file__).parents[2])
    there = subprocess.run(
        [sys.executable, "-c", f"{MADE}\nprint(text, end='')"],
        capture_output=True, text=True, check=True, cwd=root,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    ).stdout  # fmt: skip
    assert there == here["text"]
    assert "tvm_hopper.wgmma" in there
