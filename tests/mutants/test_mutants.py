"""A sample of the mutants, and what the run makes of judges that fail."""

import functools
import time

import pytest

from tests.mutants import __main__ as command, judging, runner
from tests.mutants.judging import Outcome, judge, right_outputs
from tests.mutants.kernels import MAKERS, subject
from tests.mutants.report import diff, table
from tests.mutants.runner import (
    CRASH,
    EQUIVALENT,
    KILLED,
    NO_PROGRAM,
    SURVIVOR,
    Verdict,
    draw,
    examine,
)
from tests.mutants.sites import Site


@functools.cache
def sample():
    return draw(60, seed=2026)


@pytest.mark.parametrize("part", range(4))
def test_no_mutant_of_a_sample_survives(part):
    verdicts = [examine(mutant) for mutant in sample()[part::4]]
    left = [v for v in verdicts if v.kind in (SURVIVOR, CRASH)]
    assert not left, "\n".join(f"{v.kind} {v.kernel}: {v.site}\n{v.why}\n{diff(v)}" for v in left)
    assert any(v.kind == KILLED for v in verdicts)


def test_a_sample_has_every_class_and_is_repeatable():
    everything = draw(0, seed=0)
    assert len(everything) >= 1500
    assert {s.kind for _, s in draw(200, 5)} == {s.kind for _, s in everything}
    assert draw(200, 5) == draw(200, 5) != draw(200, 6)
    assert len(set(draw(200, 5))) == 200


@pytest.mark.parametrize("name", MAKERS)
def test_the_kernels_themselves_are_clean(name):
    kernel = subject(name)
    assert judge(kernel, kernel.program, right_outputs(kernel)) == Outcome("")


def find(kernel, **fields):
    return next(
        (kernel, s)
        for s in runner.sites_of(kernel)
        if all(getattr(s, key) == value for key, value in fields.items())
    )


def test_each_judge_can_be_the_first():
    kernel = subject("matmul")
    want = right_outputs(kernel)

    def first(**fields):
        program = runner.build(kernel, find("matmul", **fields)[1])
        return judge(kernel, program, want).judge

    assert first(where="swizzle of a map", change="twice") in ("launch", "simulator")
    assert first(kind="bytes", change="plus one") == "static check"
    assert first(where="box 0 of a map", change="minus one") == "launch"
    assert first(kind="coordinate", change="twice") == "values"


def test_a_judge_that_raises_is_a_crash(monkeypatch):
    def raises(*_):
        raise KeyError("x")

    monkeypatch.setattr(judging, "check_sync", raises)
    verdict = examine(find("matmul", kind="coordinate", change="twice"))
    assert (verdict.kind, verdict.why) == (CRASH, "static check: KeyError('x')")


def test_a_judge_that_hangs_is_a_crash(monkeypatch):
    monkeypatch.setattr(judging, "check_sync", lambda *_: time.sleep(60))
    mutant = find("matmul", kind="coordinate", change="twice")
    verdict = examine(mutant, limit=0.5)
    assert (verdict.kind, verdict.why) == (CRASH, "no verdict after 0.5 s")


def test_what_is_no_program_is_left_out():
    assert examine(("matmul", Site("device", "swap", 99999, "none"))).kind == NO_PROGRAM


def test_a_survivor_is_printed_and_is_an_error(monkeypatch, capsys, tmp_path):
    mutant = find("matmul", kind="group", change="plus one")
    verdicts = [Verdict(*mutant, SURVIVOR), Verdict(*mutant, EQUIVALENT, "", "a rule")]
    monkeypatch.setattr(command, "examine_all", lambda mutants, jobs: iter(verdicts))
    report = tmp_path / "table.md"
    assert command.main(["--count", "2", "--report", str(report)]) == 1
    said = capsys.readouterr().out
    assert "survivor: matmul: device group" in said
    assert "+" in said
    assert '"wait_group"' in said
    assert "| group | 2 | 0 | 0 | 0 | 0 | 0 | 0 | 1 | 1 | 0 |" in report.read_text()
    assert "| a rule | 1 |" in table(verdicts)
    monkeypatch.setattr(command, "examine_all", lambda mutants, jobs: iter(verdicts[1:]))
    assert command.main(["--count", "2"]) == 0


def test_unknown_kernels_are_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["--kernels", "nothing"])
    assert "need some of matmul; two consumers" in capsys.readouterr().err
