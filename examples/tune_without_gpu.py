"""Tune a matmul with MetaSchedule on a machine that has no GPU, and replay the best schedule.

    python examples/tune_without_gpu.py [--trials 8] [--work-dir DIR]

The search space is `hs.matmul` with a sampled tile width and a sampled last pipeline stage.  Each
candidate is lowered to its final device function in a worker process; a candidate that the lowering
refuses is dropped, as in any tuning run.  Only the times are made up here (a longer text counts as
faster, which says nothing): on a machine with an H200 leave out `builder=` and `runner=`, and
MetaSchedule builds and measures.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import tvm
from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads

TARGET = {"kind": "cuda", "arch": "sm_90a", "max_shared_memory_per_block": 232448}
SHAPE = (4096, 4096, 4096)
FAILED = 1e9  # seconds; MetaSchedule notes 1e10 for what could not be built or run


def space(sch: s_tir.Schedule) -> None:
    """Describe all candidates once: what is sampled goes into the schedule as it is."""
    tile_n = sch.sample_categorical([64, 128, 256], [0.3, 0.3, 0.4])
    last_stage = sch.sample_categorical([1, 2, 3], [0.2, 0.4, 0.4])
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, tile_n, 64), stages=last_stage + 1))


def build(mod: tvm.IRModule, target: tvm.target.Target, _params: object) -> str:
    """Lower one candidate (in a worker process); return the device function as text."""
    from tvm_hopper import pipeline

    return pipeline.lower_final(mod, target).device.script()


def export(text: str) -> str:
    """Keep what was built where the runner finds it."""
    path = Path(tempfile.mkdtemp()) / "device.py"
    path.write_text(text)
    return str(path)


class Answer:
    """The result of a run that is over at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def done(self) -> bool:
        """Tell whether `result` is there."""
        return True

    def result(self) -> ms.runner.RunnerResult:
        """Return the time."""
        return ms.runner.RunnerResult([self.seconds], None)


@derived_object
class PretendedRunner(ms.runner.PyRunner):
    """Answers with a time that was not measured: longer device functions count as faster."""

    def run(self, runner_inputs: list[ms.runner.RunnerInput]) -> list[ms.runner.RunnerFuture]:
        """Make up one time for each candidate."""
        lengths = [Path(str(i.artifact_path)).stat().st_size for i in runner_inputs]
        answers = [Answer(1.0 / (1 + n)) for n in lengths]
        return [ms.runner.RunnerFuture(a.done, a.result) for a in answers]


@contextlib.contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Spare MetaSchedule the import of TVM's 496 tensor intrinsics: 25 s, and none is used here."""
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = types.ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


def tune(work_dir: str, trials: int) -> ms.database.Database:
    """Run the search; the database lies in `work_dir`."""
    with without_tensor_intrinsics():
        return ms.tune_tir(
            workloads.matmul(*SHAPE),
            tvm.target.Target(TARGET, host="llvm"),
            work_dir=work_dir,
            max_trials_global=trials,
            num_trials_per_iter=trials,
            builder=ms.builder.LocalBuilder(max_workers=2, f_build=build, f_export=export),
            runner=PretendedRunner(),
            cost_model="random",
            space=ms.space_generator.ScheduleFn(
                space, sch_rules=[], postprocs=[], mutator_probs={}
            ),
            strategy="replay-trace",
            seed=1,
        )


# a process that has never heard of this package replays what was found
REPLAY = """
import sys
import tvm
from tvm.s_tir import Schedule, meta_schedule as ms

database = ms.database.JSONDatabase(work_dir=sys.argv[1])
record = min(database.get_all_tuning_records(), key=lambda r: float(r.run_secs[0]))
sch = Schedule(record.workload.mod)
record.trace.apply_to_schedule(sch, remove_postproc=False)
best = database.query_schedule(record.workload.mod, record.target, "main")
tvm.ir.assert_structural_equal(sch.mod, best.mod)
assert not any(name.startswith("tvm_hopper.schedule") for name in sys.modules)
print("best schedule, replayed in a process of its own:")
print(sch.trace)
"""


def main() -> None:
    """Tune, then replay in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--work-dir", default=None)
    args = parser.parse_args()
    work_dir = args.work_dir or tempfile.mkdtemp(prefix="tvm_hopper_tune_")
    database = tune(work_dir, args.trials)
    records = database.get_all_tuning_records()
    good = [r for r in records if all(float(t) < FAILED for t in r.run_secs)]
    print(f"{len(good)} of {args.trials} candidates lowered; database and logs in {work_dir}")
    if not good:
        sys.exit(f"no candidate could be lowered: see {work_dir}/logs")
    subprocess.run([sys.executable, "-c", REPLAY, work_dir], check=True)


if __name__ == "__main__":
    main()
