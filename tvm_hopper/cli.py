"""The shell commands: `python -m tvm_hopper COMMAND ...`, also installed as `tvm-hopper`.

One parser for all of them. A command is one function of `COMMANDS`: it names the command, its
arguments, and what runs. That is imported only once it is requested, so that `--help` and a mistake
in the command line answer at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

INTERRUPTED = 130  # exit code of a command that Ctrl-C has ended
MISTAKE = 2  # exit code of a command line, a file or a kernel that no command can work on
TARGET = "nvidia/nvidia-h200"


def add_doctor(commands: Any) -> None:
    """Add `doctor`: what this machine has and lacks, and what fixes it."""
    text = "what this machine has and lacks, and what fixes it"
    where = "reports.doctor:doctor_command"
    parser = _command(commands, "doctor", text, where, needs_tvm=False)
    parser.epilog = "exit code: 0 all is there, 1 something that everybody needs is missing"
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write what a bug report needs to this file"
    )


def add_verify(commands: Any) -> None:
    """Add `verify`: simulate a kernel, judge its synchronization, and compare its values."""
    text = "simulate a kernel and judge its synchronization and values"
    parser = _command(commands, "verify", text, "simulation:verify_command")
    parser.epilog = (
        "exit code: 0 clean, 3 review, 4 incomplete, 5 error; 2 a mistake in the command line or a "
        "kernel that cannot be run"
    )
    _add_run(parser)
    _number(
        parser,
        "--budget",
        float,
        "SECONDS",
        "after which no further schedule is begun",
        default=120.0,
    )
    parser.add_argument(
        "--against",
        type=_kernel,
        metavar="FILE.py:NAME",
        help="the plain program to compare values with (default: what the kernel was before its "
        "first schedule helper, if this process makes it)",
    )


def add_explain(commands: Any) -> None:
    """Add `explain`: what the lowering makes of a kernel."""
    text, where = "what the lowering makes of a kernel", "reports.explanation:explain_command"
    parser = _command(commands, "explain", text, where)
    parser.epilog = "exit code: 0; 2 a mistake in the command line or a kernel that is not lowered"
    _add_kernel(parser)


def add_simulate(commands: Any) -> None:
    """Add `simulate`: run some thread blocks of a kernel on the CPU."""
    text = "run some thread blocks of a kernel on the CPU"
    parser = _command(commands, "simulate", text, "verification.some_blocks:simulate_command")
    parser.epilog = (
        "numbers are random; exit code: 0 clean, 3 review, 4 incomplete, 5 error; 2 a mistake in "
        "the command line or a kernel that cannot be run"
    )
    _add_run(parser)
    parser.add_argument("--policy", default="on_wait", help="of asynchronous operations")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    _add_sizes(parser, "symbols of the kernel")
    parser.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE",
        help="draw the first thread block: a page, or FILE.json for Perfetto",
    )


def add_cuda(commands: Any) -> None:
    """Add `cuda`: the CUDA text of a kernel."""
    parser = _command(commands, "cuda", "the CUDA text of a kernel", "reports.code:cuda_command")
    _add_kernel(parser)


def add_sass(commands: Any) -> None:
    """Add `sass`: the machine code of a kernel."""
    parser = _command(commands, "sass", "the machine code of a kernel", "reports.code:sass_command")
    _add_kernel(parser)


def add_passes(commands: Any) -> None:
    """Add `passes`: which passes change a kernel."""
    text, where = "which passes change a kernel, by stage", "reports.passes:passes_command"
    parser = _command(commands, "passes", text, where)
    parser.epilog = "exit code: 0; 2 a mistake in the command line or a kernel that is not lowered"
    _add_kernel(parser)
    parser.add_argument(
        "--diff",
        action="append",
        default=[],
        metavar="PASS",
        help='print what a pass changes; "all": what each of them does',
    )


def add_tune(commands: Any) -> None:
    """Add `tune`: search for the best configurations of a module's functions."""
    text = "search for the best configurations of kernels"
    where = "meta_schedule.command:tune_command"
    parser = _command(commands, "tune", text, where)
    parser.epilog = "exit code: 0; 2 a mistake in the command line, or nothing that can be tuned"
    _add_kernel(parser)
    _number(
        parser,
        "--trials",
        int,
        "N",
        "measured kernels in all, those in the work folder included (default: %(default)s)",
        default=64,
    )
    _add_work_dir(parser, "--work-dir", default="tuned")
    parser.add_argument("--gpus", default="all", metavar="LIST", help='"all", or e.g. 0,1')
    parser.add_argument("--tracker", metavar="HOST:PORT/KEY", help="a TVM RPC tracker instead")
    _number(
        parser,
        "--fake",
        int,
        "N",
        "N fake GPUs instead, which measure nothing: to try a run",
        default=0,
    )
    _number(parser, "--each", int, "N", "trials of one function at most")
    _number(parser, "--seconds", float, "S", "after which no more trials begin")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def add_report(commands: Any) -> None:
    """Add `report`: what a tuning run found."""
    text, where = "what a tuning run found", "meta_schedule.report:report_command"
    parser = _command(commands, "report", text, where)
    parser.epilog = "exit code: 0; 2 a mistake in the command line, or no records"
    _add_work_dir(parser, "work_dir")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the table as a page, too")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the searches, too")


def add_model_report(commands: Any) -> None:
    """Add `model-report`: what each function of a built Relax model costs."""
    text = "what each function of a built Relax model costs, and who computes it"
    parser = _command(commands, "model-report", text, "relax.model_report:model_report_command")
    parser.epilog = (
        "needs no GPU and no driver; exit code: 0; 2 a mistake in the command line, or a file that "
        "was not built by tvm_hopper"
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE.so", help="a library that ex.export_library wrote"
    )
    _add_sizes(parser, "symbols of the model")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page, too")


def add_serve(commands: Any) -> None:
    """Add `serve`: measure for tuning runs elsewhere, on the GPUs of this machine."""
    text = "measure for tuning runs elsewhere, by TVM's RPC: a server for each GPU"
    parser = _command(commands, "serve", text, "meta_schedule.remote.serve:serve_command")
    parser.epilog = (
        "TVM's RPC knows no authentication: whoever reaches a server runs code on this machine"
    )
    parser.add_argument("--tracker", required=True, metavar="HOST:PORT", help="TVM's tracker")
    parser.add_argument("--key", required=True, help="under which clients request these servers")
    parser.add_argument("--gpus", default="all", help='"all", or numbers, "0,1" (default: all)')
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="that the servers listen on (default: %(default)s, this machine alone)",
    )
    _number(
        parser,
        "--fake",
        int,
        "N",
        "serve N fake GPUs, which measure nothing: to try a set-up",
        default=0,
    )


COMMANDS: tuple[Callable[[Any], None], ...] = (
    add_doctor,
    add_verify,
    add_simulate,
    add_explain,
    add_cuda,
    add_sass,
    add_passes,
    add_tune,
    add_report,
    add_model_report,
    add_serve,
)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every command."""
    parser = argparse.ArgumentParser(
        "python -m tvm_hopper",
        description="Plain loops scheduled with TVM become Hopper kernels.",
        epilog="`COMMAND --help` explains one of them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for add in COMMANDS:
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    - `argv`: the words behind the program's name; left out, those of this process.
    - returns: the exit code. 2 is a mistake in the command line or a kernel that cannot be worked
      on; then the reason is on stderr.
    """
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said why, or has printed what was requested
        return MISTAKE if stop.code else 0
    try:
        return arguments.run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from tvm_hopper.errors import HopperError

        if not isinstance(error, (ValueError, HopperError)):
            raise
        print(error, file=sys.stderr)
        return MISTAKE


def _command(
    commands: Any, name: str, text: str, where: str, needs_tvm: bool = True
) -> argparse.ArgumentParser:
    """Add a command that runs the function "module:name"."""

    def run(arguments: argparse.Namespace) -> int:
        if needs_tvm:
            _load_tvm()
        module, _, function = where.partition(":")
        return int(getattr(importlib.import_module(f"tvm_hopper.{module}"), function)(arguments))

    sentence = f"{text[0].upper()}{text[1:]}."
    parser = commands.add_parser(name, help=text, description=sentence, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run)
    return parser


def _number(
    parser: argparse.ArgumentParser, name: str, kind: Any, unit: str, text: str, **default: Any
) -> None:
    parser.add_argument(name, type=_positive(kind), metavar=unit, help=text, **default)


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_kernel(parser)
    parser.add_argument("--entry", metavar="NAME", help="host function, if the module has several")
    _number(parser, "--max-ctas", int, "N", "thread blocks to run at most", default=8)


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kernel",
        type=_kernel,
        metavar="FILE.py:NAME",
        help="a module, a schedule, or a function without arguments that returns one",
    )
    parser.add_argument("--target", default=TARGET, help="of the lowering (default: %(default)s)")


def _add_sizes(parser: argparse.ArgumentParser, symbols: str) -> None:
    text = f"values of the {symbols}, as batch=1,length=2048"
    parser.add_argument("--sizes", type=_sizes, default=(), metavar="NAME=N,...", help=text)


def _add_work_dir(parser: argparse.ArgumentParser, name: str, **given: Any) -> None:
    parser.add_argument(name, metavar="FOLDER", help="where records are kept", **given)


def _kernel(spec: str) -> tuple[Path, str]:
    file, _, name = spec.rpartition(":")
    if not name or Path(file).suffix != ".py":
        raise argparse.ArgumentTypeError(f"found {spec!r}; need the FILE.py:NAME of a kernel")
    if not Path(file).is_file():
        raise argparse.ArgumentTypeError(
            f"found no file {file}; need the FILE.py:NAME of a kernel, from {Path.cwd()}"
        )
    return Path(file), name


def _sizes(text: str) -> list[tuple[str, int]]:
    pairs = [x.partition("=") for x in text.split(",")]
    if not all(name.isidentifier() and size.isdigit() for name, _, size in pairs):
        raise argparse.ArgumentTypeError(f"found {text!r}; need NAME=N,NAME=N")
    return [(name, int(size)) for name, _, size in pairs]


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        number = kind(text)
        if not number > 0:
            raise argparse.ArgumentTypeError(f"found {text}; need a number above 0")
        return number

    parse.__name__ = getattr(kind, "__name__", "number")
    return parse


def _load_tvm() -> None:
    """Do what `import tvm_hopper` does elsewhere: a command decides itself whether it needs TVM."""
    from tvm_hopper.integration import autoload

    try:
        autoload.register()
    except ImportError as error:  # versions that crash
        raise ValueError(str(error)) from error


def _version() -> str:
    import tvm_hopper
    from tvm_hopper.requests import pins

    return f"tvm_hopper {tvm_hopper.__version__}, for apache-tvm {pins.TVM}"
