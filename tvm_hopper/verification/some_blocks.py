"""`python -m tvm_hopper simulate FILE.py:make`: run a kernel on the CPU, on numbers of ours."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from tvm_hopper.errors import HopperError, require_packages
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.requests.kernel_file import load_kernel
from tvm_hopper.sim import Result, RunOptions
from tvm_hopper.sim.cta_selection import choose_blocks
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.launch.signature import Argument
from tvm_hopper.sim.tir import numpy_dtype
from tvm_hopper.verification.launches import BoundLaunch, bound_launches, run_launches
from tvm_hopper.verification.numbers import fill_random
from tvm_hopper.verification.program import load
from tvm_hopper.verification.progress import ProgressLine
from tvm_hopper.verification.report import EXIT_CODES


def simulate_command(arguments: argparse.Namespace) -> int:
    """Simulate some thread blocks of a kernel; the exit code is the verdict."""
    if arguments.timeline is not None and arguments.timeline.suffix != ".json":
        require_packages(f"simulate --timeline {arguments.timeline}", "bokeh")
    program = load(load_kernel(*arguments.kernel), arguments.target, arguments.entry)
    values, _ = complete(program.arguments, _sized(program.arguments, dict(arguments.sizes)))
    launches = bound_launches(program, values, DEFAULT_NUM_SMS)
    chosen = [choose_blocks(x.func, x.setup, arguments.max_ctas) for x in launches]
    outputs = [x for x in values if all(x in choice.only_written for choice in chosen)]
    fill_random(
        values, program.arguments, {x.name for x in program.arguments if x.shape} - {*outputs}
    )
    begun = time.monotonic()
    with ProgressLine(name="simulate") as line:
        run = RunOptions(arguments.policy, arguments.seed, progress_line=line)
        result = run_launches(launches, values, outputs, [x.blocks for x in chosen], run)
    whole = _whole_grid(launches, [len(x.blocks) for x in chosen], time.monotonic() - begun)
    if arguments.json:
        found = [asdict(one) for one in result.findings]
        print(json.dumps({"verdict": result.verdict, "findings": found, "grid": whole}, indent=1))
    else:
        print("\n".join([str(result), *whole]))
    if arguments.timeline is not None:
        print(_draw(result, arguments.timeline))
    return EXIT_CODES[result.verdict]


def _sized(arguments: list[Argument], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return scalars of the given names, and memory for tensors with extents of these names."""
    known: dict[str, Any] = {x.name: sizes[x.name] for x in arguments if x.name in sizes}
    for argument in arguments:
        shape = [sizes.get(str(x), x) for x in argument.shape or ()]
        if shape != [*(argument.shape or ())] and all(isinstance(x, int) for x in shape):
            known[argument.name] = np.zeros(shape, numpy_dtype(argument.dtype))  # type: ignore
    return known


def _whole_grid(launches: list[BoundLaunch], counts: list[int], seconds: float) -> list[str]:
    """Say what all thread blocks would take, by the time of those that ran."""
    total = sum(int(np.prod(x.setup["grid"])) for x in launches)
    ran = sum(counts)
    if ran >= total:
        return []
    return [
        f"{ran} of {total} thread blocks ran, in {seconds:.1f} s; all would take about "
        f"{seconds / ran * total:.0f} s: --max-ctas {total}"
    ]


def _draw(result: Result, path: Any) -> str:
    try:
        timeline = result.timeline()
        return f"timeline: {timeline.save(path) if path.suffix == '.json' else timeline.html(path)}"
    except OSError as error:
        raise HopperError(
            f"simulate --timeline {path}: found no place to write at ({error.strerror}); need a "
            "path in a folder"
        ) from error
