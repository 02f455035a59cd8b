"""The shell command `tune`: python -m tvm_hopper tune module.py:make --trials 200."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from tvm_hopper.errors import cannot_tune
from tvm_hopper.requests.kernel_file import load_kernel

from .fake_runner import fake_gpus
from .report import TuningReport, wide_console
from .tuning import tune


def tune_command(arguments: argparse.Namespace) -> int:
    """Tune what a Python file makes, and print the table."""
    with contextlib.ExitStack() as stack:
        runner = None
        if arguments.fake:
            runner = fake_gpus(arguments.fake)
            stack.callback(runner.close)
        try:
            database = tune(
                load_kernel(*arguments.kernel),
                arguments.target,
                trials=arguments.trials,
                each=arguments.each,
                seconds=arguments.seconds,
                gpus=as_gpus(arguments.gpus),
                runner=runner,
                tracker=arguments.tracker,
                work_dir=arguments.work_dir,
                progress=False if arguments.quiet else None,
            )
        except KeyboardInterrupt:
            text = f"what was measured is in {arguments.work_dir}; the same command goes on"
            print(f"{text} from there", file=sys.stderr)
            raise
    report = TuningReport(database)
    if arguments.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        wide_console().print(report.table())
    return 0


def as_gpus(text: str) -> Any:
    """Read "all", or numbers of GPUs.

    - raises TuningError: it is neither.
    """
    if text == "all":
        return text
    parts = text.split(",")
    if not all(x.strip().isdigit() for x in parts):
        raise cannot_tune("--gpus", repr(text), '"all", or numbers of GPUs, e.g. 0,1')
    return [int(x) for x in parts]
