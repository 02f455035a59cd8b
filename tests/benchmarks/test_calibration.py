"""What the calibration may run on a GPU, without one."""

import sys

from benchmarks.calibration import run
from benchmarks.calibration.cases import ALL, QUESTIONS, RIGHT
from tests.seeded.catalogue import CONTROLS, GOLDEN
from tests.seeded.lowering import lower
from tvm_hopper.sim.protocol.check import explore_skeleton


def test_every_golden_kernel_and_control_is_run():
    assert len(ALL) == len(RIGHT) + len(QUESTIONS)
    assert {case.name for case in RIGHT} == {f"golden {g.name}" for g in GOLDEN} | {
        f"control {c.id}" for c in CONTROLS if c.golden not in GOLDEN
    }


def test_one_question_alone_can_hang():
    hanging = set()
    for case in QUESTIONS:
        lowered = lower(case.make().func)
        if "DEADLOCK" in explore_skeleton(lowered.device, lowered.host).rules:
            hanging.add(case.name)
    assert hanging == {"M04, one trip"}


def test_a_case_that_fails_is_told_by_its_first_error(monkeypatch):
    script = "import sys; sys.exit('CUDA error: launch failed')"
    monkeypatch.setattr(run.subprocess, "run", _instead_of(run.subprocess.run, script))
    assert run.in_a_process("M54") == {
        "case": "M54",
        "outcome": "exit code 1: CUDA error: launch failed",
    }


def test_a_case_that_hangs_ends_with_its_process(monkeypatch):
    monkeypatch.setattr(run, "LIMIT_S", 0.2)
    script = "import time; time.sleep(30)"
    monkeypatch.setattr(run.subprocess, "run", _instead_of(run.subprocess.run, script))
    assert run.in_a_process("M04")["outcome"] == "no end within 0.2 s"


def _instead_of(original, script):
    return lambda command, **options: original([sys.executable, "-c", script], **options)
