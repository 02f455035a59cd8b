"""Runner, reproducer and command line."""

import json
import runpy
import time
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.worker_pool import WorkerError
from tests.fuzz import report, runner
from tests.fuzz.__main__ import Progress, main
from tests.fuzz.case import Case, Outcome, Step
from tests.fuzz.families import FAMILIES
from tests.fuzz.judge import judge
from tests.fuzz.planted import MATMUL, case, product, wrong
from tests.fuzz.reproducer import read_decisions, text, write
from tests.fuzz.runner import Result, Summary, Task, answer, generate, plan, run, shrink_groups


def test_no_case_starts_behind_the_end():
    assert run(plan(0, ["hostile"], None), 1, time.monotonic() - 1).total == 0


def test_every_kernel_is_assembled_on_demand():
    """A share is: "matmul" asks for a tenth of its cases, "hostile" builds nothing in some."""
    for family in ("matmul", "hostile"):
        share, every = (list(plan(5, [family], 30, assemble=x)) for x in (False, True))
        made = [(generate(a)[0], generate(b)[0]) for a, b in zip(share, every, strict=True)]
        assert any(b.cubin and not a.cubin for a, b in made)
        assert all(b.cubin or not (b.kernels and b.build) for _, b in made)
        assert all(b.cubin for a, b in made if a.cubin)
        assert not any(b.cubin for _, b in made if not b.build)


def test_silence_of_a_worker_is_a_hang_or_a_crash():
    task = Task("hostile", 0, 0)
    assert answer(task, WorkerError("no result after 60 s")).outcome.kind == "hang"
    assert answer(task, WorkerError("process died with exit code -11")).outcome.kind == "crash"


@pytest.mark.parametrize(
    ("statement", "kind", "seconds"),
    [
        ("import os; os._exit(3)", "crash", 3600.0),
        pytest.param("import time; time.sleep(1e6)", "hang", 60.0, marks=pytest.mark.slow),
    ],
)
def test_a_case_that_hangs_or_kills_is_judged_apart(monkeypatch, statement, kind, seconds):
    monkeypatch.setattr(runner, "CASE_SECONDS", seconds)
    made = Case(product(), (Step(statement),))
    assert runner._in_a_process_of_its_own(made).kind == kind


def found(kind: str, said: str, number: int = 0, family: str = "matmul", size: int = 9):
    return Task(family, 0, number), Result(Outcome(kind, "build", said), (1,), size, 1)


def test_faults_are_put_into_groups():
    summary = Summary()
    for each in (
        found("right", ""),
        found("unclear", "tile 64", 1),
        found("unclear", "tile 128", 2),
        found("unclear", "another", 3),
        found("wrong", "3 differ", 4, "steps"),
    ):
        summary.add(*each)
    assert (summary.total, summary.faults, len(summary.groups)) == (5, 4, 3)
    assert summary.of("unclear") == 3
    lines = report.details(summary)
    assert any("x2" in line and "matmul:0:1" in line for line in lines)


def test_the_report_names_seed_commit_and_versions():
    summary = Summary()
    summary.add(*found("right", ""))
    summary.add(*found("wrong", "x", 1))
    page = report.markdown(summary, list(FAMILIES), "python -m tests.fuzz --seed 5")
    assert "--seed 5" in page
    assert "apache-tvm 0" in page
    assert "2 cases" in page
    assert f"| wrong (fault) | 1 |{' 0 |' * (len(FAMILIES) - 1)} 1 |" in page
    assert report.commit() in page


def test_a_group_gets_one_shrunk_script(tmp_path):
    task = next(islice(plan(0, ["hostile"], None), 1))
    outcome = Outcome("silent", "hs.nothing", "never the same")
    summary = Summary()
    summary.add(task, Result(outcome, (0,), 5, 1))
    told = []
    shrink_groups(summary, tmp_path, 1, 120, told.append)
    (path,) = tmp_path.glob("*.py")
    assert str(path) in told[0]
    assert read_decisions(path)[0] == "hostile"


def test_a_script_runs_alone(tmp_path, capsys):
    made = wrong(16, 8, 16)
    path = write(tmp_path, "1_2", "matmul", [1, 2, 3], made, judge(made))
    assert path.name == "wrong_matmul_1_2.py"
    runpy.run_path(str(path), run_name="__main__")
    assert "C elements that differ: 128 of 128" in capsys.readouterr().out
    assert read_decisions(path) == ("matmul", [1, 2, 3])


def test_a_script_ends_where_the_fault_is():
    refused = case(build="raise ValueError")
    script = text("0_0", "steps", [], refused, judge(refused))
    assert script.rstrip().endswith("raise ValueError")
    unclear = case("raise tvm_hopper.HopperError('no')")
    script = text("0_0", "steps", [], unclear, judge(unclear))
    assert script.rstrip().endswith("raise tvm_hopper.HopperError('no')")
    assert MATMUL.text in script


def test_a_file_without_decisions_is_refused(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("pass\n")
    with pytest.raises(ValueError, match="found no decisions"):
        read_decisions(path)


def test_command_line_and_workers(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["--family", "nothing"])
    assert "found ['nothing']; need some of" in capsys.readouterr().err
    assert main(["--classes"]) == 0
    assert "wrong" in capsys.readouterr().out
    assert main(["--replay", "matmul:0:0", "--assemble", "all"]) in (0, 1)
    assert "hs.matmul" in capsys.readouterr().out
    page = tmp_path / "page.md"
    arguments = ["--cases", "4", "--family", "hostile", "--jobs", "2", "--shrink-minutes", "0"]
    assert main([*arguments, "--report", str(page)]) in (0, 1)
    said = capsys.readouterr().out
    assert "4 cases" in said
    assert "process" not in said  # none died, none hung
    assert "--family hostile" in page.read_text()


def test_progress_is_plain_text_without_a_terminal(capsys):
    progress = Progress(10, None)
    summary = Summary(seconds=2.0)
    summary.add(*found("right", ""))
    progress(summary)
    progress(summary)
    progress.close()
    assert capsys.readouterr().out == " 10%  1 cases, 0.5/s, 1 right, 0 faults in 0 groups\n"


def test_results_survive_a_pipe():
    task, result = found("right", "")
    assert json.dumps(result.outcome.text) == '""'
    assert Path(task.folder) == Path()
