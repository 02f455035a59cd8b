"""Simulator of Hopper kernels: runs the final device function and checks its synchronisation.

It imports no pass: it must not share their mistakes.
"""

import importlib
from typing import TYPE_CHECKING

from tvm_hopper.sim.findings import RULES, VERDICTS, Finding, worst

if TYPE_CHECKING:  # names that `__getattr__` imports, for type checkers
    from tvm_hopper.sim.launch.host import run_host
    from tvm_hopper.sim.launch.tma import TensorMapArg
    from tvm_hopper.sim.options import RunOptions
    from tvm_hopper.sim.result import Result
    from tvm_hopper.sim.run import run_kernel

# The machine is imported on first use: a build needs only the rules.
_LATE = {
    "Result": "result",
    "RunOptions": "options",
    "TensorMapArg": "launch.tma",
    "run_host": "launch.host",
    "run_kernel": "run",
}

__all__ = [
    "RULES",
    "VERDICTS",
    "Finding",
    "Result",
    "RunOptions",
    "TensorMapArg",
    "run_host",
    "run_kernel",
    "worst",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _LATE:
            return getattr(importlib.import_module(f"tvm_hopper.sim.{_LATE[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
