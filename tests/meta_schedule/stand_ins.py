"""A builder and a runner without compiler and GPU: times are those of a formula.

The artifact is a file with the configuration, so that the time depends on what is built.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_hopper.meta_schedule.annotations import configurations_of
from tvm_hopper.meta_schedule.configurations import as_text


@derived_object
class NoteBuilder(ms.builder.PyBuilder):
    """Writes the configuration of each kernel down; fails where it is told to."""

    def __init__(
        self, fails: Callable[[str], bool] = lambda text: False, why: str = "ptxas: no room"
    ):
        super().__init__()
        self.fails, self.why = fails, why
        self.built: list[str] = []

    def start(self):
        """Nothing to start."""

    def build(self, build_inputs):
        found = []
        for one in build_inputs:
            text = as_text(configurations_of(one.mod)[0])
            self.built.append(text)
            if self.fails(text):
                found.append(ms.builder.BuilderResult(None, self.why))
                continue
            path = Path(tempfile.mkdtemp()) / "kernel.txt"
            path.write_text(text)
            found.append(ms.builder.BuilderResult(str(path), None))
        return found


def formula(text: str) -> float:
    """Return seconds that depend on the text alone."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
    return 1e-5 * (1 + number)


@derived_object
class FormulaRunner(ms.runner.PyRunner):
    """Times by a formula; None is an error."""

    def __init__(
        self,
        seconds: Callable[[str], float | None] = formula,
        why: str = "GPU 0: illegal address",
    ):
        super().__init__()
        self.seconds, self.why = seconds, why
        self.texts: list[str] = []

    def run(self, runner_inputs):
        return [self._one(Path(str(x.artifact_path)).read_text()) for x in runner_inputs]

    def _one(self, text):
        self.texts.append(text)
        time = self.seconds(text)
        times = [time, time] if time is not None else None
        result = ms.runner.RunnerResult(times, None if times else self.why)
        return ms.runner.RunnerFuture(lambda: True, lambda: result)
