"""The measuring half of tuning: trials a second, spread, agreement with timing.py, survival.

python -m benchmarks.measuring --build-only        # no GPU: the builder alone
python -m benchmarks.measuring                     # one GPU: all of it
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any

from tvm_hopper.meta_schedule.measuring import artifact
from tvm_hopper.meta_schedule.workers.process import usable_cpus

TARGET = "nvidia/nvidia-h200"
SHAPES = ((4096, 4096, 4096), (512, 4096, 14336))
TILES = (
    (128, 128, 64),
    (128, 256, 64),
    (64, 128, 64),
    (64, 256, 64),
    (128, 192, 64),
    (64, 64, 128),
)
STAGES = (3, 4)
BATCH = 8
TIMES = 12  # that one kernel is measured again
SET_BYTES = 256 << 20  # of tensors that timing.py rotates through


def trials() -> list[tuple[str, Any, Any]]:
    """Return a name, the scheduled module and the arguments of each configuration."""
    from tvm import s_tir
    from tvm.s_tir import meta_schedule as ms

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import workloads

    found = []
    for shape in SHAPES:
        mod = workloads.matmul(*shape, "NT", "float16", "float16")
        arguments = ms.arg_info.ArgInfo.from_entry_func(mod, True)
        for tile in TILES:
            for stages in STAGES:
                sch = s_tir.Schedule(mod)
                hs.matmul(sch, "C", hs.MatmulConfig(tile, stages=stages))
                name = f"{'x'.join(map(str, shape))} {'x'.join(map(str, tile))}/{stages}"
                found.append((name, sch.mod, arguments))
    return found


def build_rate(builder: Any, wanted: list[tuple[str, Any, Any]]) -> list[str]:
    """Build all trials in warm workers; print the rate and return the artifacts."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    target = tvm.target.Target(TARGET)
    inputs = [ms.builder.BuilderInput(mod, target) for _, mod, _ in wanted]
    begin = time.perf_counter()
    builder.build(inputs[:1] * usable_cpus())
    start = time.perf_counter() - begin
    begin = time.perf_counter()
    results = builder.build(inputs)
    seconds = time.perf_counter() - begin
    failed = [str(x.error_msg) for x in results if x.error_msg]
    paths = [str(x.artifact_path) for x in results]
    built = [artifact.parse(Path(path).read_bytes()).built for path in paths]
    cpu = statistics.mean(x["cpu"] for x in built)
    print(
        f"builder: first results after {start:.1f} s; then {len(inputs)} trials in {seconds:.1f} s,"
        f" {len(inputs) / seconds:.2f} a second on {usable_cpus()} CPUs; {cpu:.2f} s"
        f" of CPU a trial; {len(failed)} failed {failed[:1]}",
        flush=True,
    )
    return paths


def tuning_rate(builder: Any, runner: Any, wanted: list[tuple[str, Any, Any]]) -> None:
    """Build and measure in batches, as a search does that does not wait for results."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    target = tvm.target.Target(TARGET)
    begin, futures = time.perf_counter(), []
    for i in range(0, len(wanted), BATCH):
        batch = wanted[i : i + BATCH]
        built = builder.build([ms.builder.BuilderInput(mod, target) for _, mod, _ in batch])
        futures += runner.run(
            [
                ms.runner.RunnerInput(x.artifact_path, "cuda", arguments)
                for x, (_, _, arguments) in zip(built, batch, strict=True)
            ]
        )
    results = [future.result() for future in futures]
    seconds = time.perf_counter() - begin
    failed = [str(x.error_msg) for x in results if x.error_msg]
    print(
        f"builder and GPU: {len(results)} trials in {seconds:.1f} s, {len(results) / seconds:.2f}"
        f" a second, {len(failed)} failed {failed[:2]}",
        flush=True,
    )


def measured(runner: Any, path: str, arguments: Any, times: int = 1) -> list[Any]:
    """Return measurements of one artifact."""
    from tvm.s_tir import meta_schedule as ms

    found = []
    for _ in range(times):
        (future,) = runner.run([ms.runner.RunnerInput(path, "cuda", arguments)])
        result = future.result()
        found.append(runner.take(path) if result.error_msg is None else str(result.error_msg))
    return found


def spread(runner: Any, wanted: list[tuple[str, Any, Any]], paths: list[str]) -> None:
    """Measure some kernels again and again, in turn; print how far apart the medians are."""
    chosen = [1, 5, len(TILES) * 2 + 1, len(TILES) * 2 + 5]
    found: dict[int, list[Any]] = {i: [] for i in chosen}
    begin = time.perf_counter()
    for _ in range(TIMES):
        for i in chosen:
            found[i] += measured(runner, paths[i], wanted[i][2])
    seconds = (time.perf_counter() - begin) / TIMES / len(chosen)
    print(f"runner: {seconds:.3f} s a measurement, with its queue and load")
    for i, results in found.items():
        lost = [x for x in results if isinstance(x, str)]
        if lost:
            print(f"  {wanted[i][0]}: {lost[0]}")
            continue
        line = f"  {wanted[i][0]:32s}"
        for kind in ("seconds", "corrected"):
            medians = [1e6 * statistics.median(getattr(x, kind)) for x in results]
            apart = (max(medians) - min(medians)) / statistics.median(medians)
            line += f" {kind} {statistics.median(medians):8.2f} us, range {apart:6.2%};"
        clocks = [x.megahertz for x in results]
        print(f"{line} {min(clocks):.0f} to {max(clocks):.0f} MHz", flush=True)


def agreement(runner: Any, wanted: list[tuple[str, Any, Any]], paths: list[str]) -> None:
    """Time kernels by timing.py and by the runner, from the same artifacts."""
    import torch
    import tvm_ffi

    from benchmarks import timing

    for first in range(0, len(paths), len(paths) // len(SHAPES)):
        chosen = [first + i for i in range(0, len(paths) // len(SHAPES), 2)]
        shapes = [x.shape for x in artifact.parse(Path(paths[first]).read_bytes()).arguments]
        count = math.ceil(SET_BYTES / sum(2 * math.prod(shape) for shape in shapes)) + 1
        make = lambda shape: torch.randn(shape, device="cuda", dtype=torch.float16)  # noqa: E731
        sets = [[tvm_ffi.from_dlpack(make(shape)) for shape in shapes] for _ in range(count)]
        contenders = []
        for i in chosen:
            files = artifact.read_files(paths[i])
            run = artifact.load(Path(paths[i]).parent, artifact.check(paths[i], files))
            call = lambda j, run=run, sets=sets: run(*sets[j])  # noqa: E731
            contenders.append(timing.Contender(wanted[i][0], call, tvm_ffi.use_torch_stream))
        warm = timing.measure(contenders, count, 30, warmup_seconds=1.0)
        cold = timing.measure_cold(contenders, count)
        for i, hot, one in zip(chosen, warm, cold, strict=True):
            (mine,) = measured(runner, paths[i], wanted[i][2])
            if isinstance(mine, str):
                print(f"  {wanted[i][0]}: {mine}")
                continue
            raw, at_clock = (1e6 * statistics.median(x) for x in (mine.seconds, mine.corrected))
            print(
                f"  {wanted[i][0]:32s} timing.py {hot.median_us:8.2f} us ({hot.method}), cold"
                f" graph {one.median_us:8.2f}; runner {raw:8.2f}, at full clock {at_clock:8.2f}",
                flush=True,
            )


def survived(builder: Any, wanted: list[tuple[str, Any, Any]], paths: list[str]) -> None:
    """Measure kernels that end badly, and a good one after each."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from tvm_hopper.meta_schedule import GpuRunner
    from tvm_hopper.testing import faulty

    runner = GpuRunner(seconds=6.0, keep_artifacts=True)
    target = tvm.target.Target(TARGET)
    for make in (faulty.illegal_address, faulty.endless, faulty.silent):
        mod = make()
        (built,) = builder.build([ms.builder.BuilderInput(mod, target)])
        arguments = ms.arg_info.ArgInfo.from_entry_func(mod, True)
        begin = time.perf_counter()
        (said,) = measured(runner, str(built.artifact_path), arguments)
        seconds = time.perf_counter() - begin
        (good,) = measured(runner, paths[0], wanted[0][2])
        after = good if isinstance(good, str) else f"{1e6 * statistics.median(good.seconds):.2f} us"
        print(f"  {make.__name__} ({seconds:.1f} s): {said}\n    a good kernel after it: {after}")
    print(f"  GPUs left: {runner.gpus}", flush=True)
    runner.close()


def main() -> None:
    """Run the parts, each on its own: one that fails leaves the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-only", action="store_true")
    options = parser.parse_args()
    from tvm_hopper.integration import autoload

    autoload.register()
    from tvm_hopper.meta_schedule import ArtifactBuilder, GpuRunner

    wanted = trials()
    builder = ArtifactBuilder()
    paths = build_rate(builder, wanted)
    if options.build_only:
        return
    runner = GpuRunner(keep_artifacts=True)
    measured(runner, paths[0], wanted[0][2])
    print(f"first measurement: {measured(runner, paths[0], wanted[0][2])[0]}", flush=True)
    for part in (
        lambda: tuning_rate(builder, runner, wanted),
        lambda: spread(runner, wanted, paths),
        lambda: agreement(runner, wanted, paths),
        lambda: survived(builder, wanted, paths),
    ):
        try:
            part()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
