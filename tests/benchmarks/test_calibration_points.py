"""What of the calibration points needs no GPU: sources compile, outcomes are read and merged."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.calibration import __main__ as calibration, outcome
from benchmarks.calibration.experiments import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[2]
BY_POINT = {experiment.point: experiment for experiment in EXPERIMENTS}
FAULT = BY_POINT["e"]


@pytest.mark.sampled(every=2)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.stem)
def test_every_experiment_compiles(experiment, tmp_path):
    command = [*calibration.NVCC, "-cubin", str(experiment.source), "-o", str(tmp_path / "x")]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    assert (tmp_path / "x").read_bytes()[:4] == b"\x7fELF"


def test_every_point_has_an_experiment():
    assert sorted(BY_POINT) == list("abcdefgh")
    stems = {path.stem for path in BY_POINT["a"].source.parent.glob("*.cu")}
    assert stems == {experiment.stem for experiment in EXPERIMENTS}


def test_lines_that_are_no_outcome_are_left_out():
    printed = 'noise\n{"point": "e", "variant": "v", "n_x": 2, "end": "ok"}\n{"point": "e"}\n3\n'
    got = outcome.read(FAULT, ("arrive", "0"), printed, "")
    assert got == [{"point": "e", "variant": "v", "n_x": 2, "end": "ok"}]


@pytest.mark.parametrize("ended", ["killed after 10 s", ""])
def test_a_run_that_prints_nothing_is_an_outcome(ended):
    (row,) = outcome.read(FAULT, ("arrive", "0"), "", ended)
    assert row == {"point": "e", "variant": "arrive 0", "end": ended or "printed nothing"}


def test_repeats_are_merged_by_the_kind_of_figure():
    one = {"point": "f", "variant": "v", "n_tries": 50, "min_ns": 9, "max_ns": 20, "end": "ok"}
    two = one | {"n_tries": 7, "min_ns": 4, "max_ns": 11, "encoder": "accepts"}
    lost = {"point": "f", "variant": "v", "end": "cudaErrorLaunchFailure"}
    (row,) = outcome.merge([one, two, lost])
    assert row == {
        "point": "f",
        "variant": "v",
        "runs": 3,
        "n_tries": 57,
        "min_ns": 4,
        "max_ns": 20,
        "encoder": "accepts",
        "end": "2 ok, 1 cudaErrorLaunchFailure",
    }


def test_values_that_differ_between_repeats_are_all_shown():
    rows = [{"point": "g", "variant": "v", "bits": bits, "end": "ok"} for bits in "ABA"]
    assert outcome.merge(rows)[0]["bits"] == "A / B"


def test_the_table_has_the_points_in_order_and_a_row_a_variant():
    rows = outcome.merge(
        [
            {"point": "e", "variant": "arrive", "end": "cudaErrorLaunchFailure"},
            {"point": "a", "variant": "corner", "n_tries": 20, "end": "ok"},
            {"point": "a", "variant": "inside", "n_closed": 3, "end": "ok"},
        ]
    )
    lines = outcome.table(rows, {"chip": "X"}).splitlines()
    assert "- chip: X" in lines
    assert lines.index(next(x for x in lines if x.startswith("## (a)"))) < lines.index(
        next(x for x in lines if x.startswith("## (e)"))
    )
    assert "| variant | runs | tries | closed | end |" in lines
    assert "| corner | 1 | 20 |  | ok |" in lines
    assert "| inside | 1 |  | 3 | ok |" in lines
    assert "| arrive | 1 | cudaErrorLaunchFailure |" in lines


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("import time; time.sleep(60)", "killed after 1 s"),
        ("import os; os.abort()", "exit code -6"),
        ("raise SystemExit('smem: invalid argument')", "exit code 1 smem: invalid argument"),
        ("pass", "printed nothing"),
    ],
)
def test_however_a_process_ends_there_is_an_outcome(script, end):
    (row,) = calibration.run_once(FAULT, Path(sys.executable), ("-c", script), limit=1.0)
    assert row["end"] == end


def test_what_was_printed_before_a_hang_is_kept():
    line = '{"point": "e", "variant": "v", "end": "ok"}'
    script = f"import time; print('{line}', flush=True); time.sleep(60)"
    rows = calibration.run_once(FAULT, Path(sys.executable), ("-c", script), limit=1.0)
    assert [row["end"] for row in rows] == ["ok", "killed after 1 s"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--points", "az"], "found 'z'; need letters of a to h"),
        (["--repeats", "0"], "found 0; need at least 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said, capsys):
    with pytest.raises(SystemExit):
        calibration.parse(arguments)
    assert said in capsys.readouterr().err


def test_without_a_compiler_nothing_is_run(monkeypatch, capsys):
    monkeypatch.setattr(calibration.shutil, "which", lambda name: None)
    assert calibration.main([]) == 2
    assert "found no nvcc on PATH" in capsys.readouterr().out


def test_a_source_that_does_not_compile_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(calibration, "NVCC", (sys.executable, "-c", "raise SystemExit('no such')"))
    with pytest.raises(RuntimeError, match=r"e_remote_arrive\.cu: nvcc failed\nno such"):
        calibration.compile_all([FAULT], tmp_path)


def test_the_table_is_written_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setattr(calibration.shutil, "which", lambda name: name)
    monkeypatch.setattr(calibration, "compile_all", lambda experiments, folder: None)
    row = {"point": "g", "variant": "v", "n_tries": 1, "end": "ok"}
    monkeypatch.setattr(calibration, "run_once", lambda *run: [row])
    assert calibration.main(["--points", "g", "--repeats", "2", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("calibration_*.md")
    text = path.read_text()
    assert "- command: python -m benchmarks.calibration --repeats 2 --points g\n" in text
    assert "| v | 2 | 2 | ok |" in text
    assert '"n_tries": 2' in path.with_suffix(".json").read_text()


def test_the_document_and_its_table_have_a_section_for_each_point():
    text = (ROOT / "docs" / "calibration.md").read_text()
    (name,) = re.findall(r"results/(calibration_\S+\.md)\)", text)
    table = (ROOT / "benchmarks" / "results" / name).read_text()
    for document in (text, table):
        assert re.findall(r"^## \((\w)\)", document, re.M) == list("abcdefgh")
