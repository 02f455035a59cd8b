"""What is read out of compute-sanitizer's text, and how a run goes on that ended early."""

import pytest

from benchmarks import sanitize
from tvm_hopper.testing.mechanisms import MECHANISMS

TEXT = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at checked_beyond+0x70
=========     by thread (0,0,0) in block (0,0,0)
========= Invalid __global__ read of size 8 bytes
=========     at checked_3_kernel+0x170
========= Invalid __global__ read of size 8 bytes
=========     at somebody_else+0x170
========= ERROR SUMMARY: 3 errors
"""


def test_messages_belong_to_the_kernel_that_they_name():
    found = sanitize.findings(TEXT)
    title = "Invalid __global__ read of size N bytes"
    assert dict(found) == {"checked_beyond": [title], "checked_3": [title]}


def test_every_mechanism_and_every_fault_has_a_kernel():
    assert set(MECHANISMS) <= set(sanitize.EVERY.values())
    assert set(sanitize.FAULTY) == set(sanitize.FAULTS)
    assert len(set(sanitize.EVERY)) == len(MECHANISMS) + len(sanitize.FAULTS)


@pytest.mark.parametrize("ends_at", [0, 1, 5])
def test_what_a_process_left_over_runs_in_the_next(monkeypatch, ends_at):
    """The kernel on which it ended says so, every other has a verdict."""
    names = list(sanitize.NAMES)
    broken = names[ends_at]

    def run(_tool, asked):
        upto = asked.index(broken) if broken in asked else len(asked)
        return dict.fromkeys(asked[:upto], "True"), {}

    monkeypatch.setattr(sanitize, "sanitize", lambda *x: (run(*x)[0], sanitize.findings("")))
    right, verdicts = sanitize.judge("racecheck")
    assert set(verdicts) == set(sanitize.EVERY)
    assert [name for name, said in verdicts.items() if said != "clean"] == [broken]
    assert broken not in right
