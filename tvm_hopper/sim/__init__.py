"""A simulator of Hopper kernels: it runs the final device function, and judges its synchronisation.

It imports no pass: it must not share their mistakes.
"""

from tvm_hopper.sim.findings import RULES, VERDICTS, Finding, worst
from tvm_hopper.sim.result import Result
from tvm_hopper.sim.run import TensorMapArg, run_host, run_kernel

__all__ = [
    "RULES",
    "VERDICTS",
    "Finding",
    "Result",
    "TensorMapArg",
    "run_host",
    "run_kernel",
    "worst",
]
