"""Build one of TVM's schedules by TVM and by us, and judge what comes out."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.ir.transform import PassContext

import tvm_hopper
from tvm_hopper import verify
from tvm_hopper.errors import HopperError
from tvm_hopper.requests import keys
from tvm_hopper.testing.ampere_schedules import A100

from .catalogue import Schedule
from .products import index_maps

TARGETS: dict[str, Any] = {"sm_90a": "nvidia/nvidia-h200", "sm_80": A100}
RUNS = (("eager", 0), ("on_wait", 0), ("random", 1))
STOCK = {"tirx.use_async_copy": True}
OURS = {keys.ASYNC_COPY: keys.AUTO}
NO_KERNEL = "no kernel"
HOST_LOOPS = "outside of every kernel"  # TVM alone builds these, for the host
WORDS = {"tma": "TMA", "bulk": "bulk copies", "cp_async": "`cp.async`"}


@dataclass(frozen=True)
class Judgement:
    """What came of a schedule: `made` is how, or why not, `verdict` that of `verify`."""

    made: str
    verdict: str = ""
    values_right: bool = False

    @property
    def is_right(self) -> bool:
        """Tell a kernel that is clean and computes what the plain program computes."""
        return self.verdict == "clean" and self.values_right

    def __str__(self) -> str:
        """Return the cell of the table."""
        if not self.verdict:
            return self.made
        return f"{self.made}: {'right' if self.is_right else self.verdict}"


def judge(schedule: Schedule, target: str, config: dict[str, Any]) -> Judgement:
    """Build a schedule for a target under the options of a PassContext, and verify the kernel."""
    program, where = schedule.program(), TARGETS[target]
    plain = schedule.plain() if schedule.plain is not None else program
    with PassContext(config=config), index_maps(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            executable = tvm.compile(program, target=where)
        except (ValueError, RuntimeError) as error:  # TVM's InternalError is one
            reason = _reason(error)
            return Judgement(NO_KERNEL if HOST_LOOPS in reason else f"refused: {reason}")
        report = verify(program, schedule.arrays(), RUNS, target=where, against=plain)
    left = [str(x.message) for x in told if "leaves a function to TVM" in str(x.message)]
    made = " ".join([_mechanisms(executable), *left])
    return Judgement(made, report.verdict, report.values.checked and report.verdict == "clean")


def _reason(error: Exception) -> str:
    """Return the last sentence of TVM's message, which is the one about the schedule."""
    text = str(error).strip().splitlines()[-1]
    return re.sub(r"^Check failed: .*? is false: |^Check failed: .*?\) : ", "", text).strip()


def _mechanisms(executable: Any) -> str:
    """Say by which mechanisms copies are made, as `explain` has it."""
    try:
        text = str(tvm_hopper.explain(executable))
    except HopperError:
        return "TVM's own"
    found = dict.fromkeys(re.findall(r"copy \S+: by (\w+)", text))
    if "made by threads" in text:
        found["threads"] = None
    return ", ".join(WORDS.get(x, x) for x in found)
