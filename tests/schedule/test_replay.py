"""Traces replay in a process that did nothing but `import tvm`."""

import json
import os
import subprocess
import sys

import pytest
import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads

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
        mod = workloads.matmul(**options)
        sch = s_tir.Schedule(mod)
        hs.matmul(sch, "C", config)
        (tmp_path / f"{name}.mod").write_text(tvm.ir.save_json(mod))
        (tmp_path / f"{name}.want").write_text(tvm.ir.save_json(sch.mod))
        (tmp_path / f"{name}.trace").write_text(tvm.ir.save_json(sch.trace.as_json()))
        database = ms.database.JSONDatabase(
            str(tmp_path / f"{name}.workload"), str(tmp_path / f"{name}.record")
        )
        workload = database.commit_workload(mod)
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


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["trace", "simplified", "json"])
def test_every_trace_replays_here(name, way):
    options, config = CASES[name]
    mod = workloads.matmul(**options)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", config)
    again = s_tir.Schedule(mod)
    if way == "json":
        Trace.apply_json_to_schedule(sch.trace.as_json(), again)
    else:
        trace = sch.trace if way == "trace" else sch.trace.simplified(remove_postproc=True)
        trace.apply_to_schedule(again, remove_postproc=False)
    tvm.ir.assert_structural_equal(again.mod, sch.mod)


def test_equal_schedules_come_out_of_two_processes():
    """The order of a trace must not hang on hashes of strings."""
    code = (
        "import tvm\nfrom tvm import s_tir\nfrom tvm_hopper import schedule as hs\n"
        "from tvm_hopper.testing import workloads\n"
        "options = dict(epilogue=('bias_row', 'silu', 'residual'), out_dtype='float16')\n"
        "sch = s_tir.Schedule(workloads.matmul('m', 1000, 72, **options))\n"
        "hs.matmul(sch, 'C')\nprint(sch.trace)\nprint(sch.mod.script())\n"
    )
    root = str(__import__("pathlib").Path(hs.__file__).parents[2])
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True, cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(texts) == 1
    assert "tvm_hopper.wgmma" in texts.pop()
