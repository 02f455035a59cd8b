"""The benchmark of the verifier: its table, and a generous limit on what it measures."""

import json
import subprocess
import sys

import pytest

from benchmarks import verify

ROW = {
    "case": "matmul 4096", "verdict": "clean", "schedules": 8, "ctas": "2 of 128",
    "cuts": ["k_0: 16 of 64 turns, period 8"],
    "seconds": 2.0, "cpu_seconds": 1.9, "peak_mb": 250.0, "static_ms": 12.0, "build_ms": 80.0,
}  # fmt: skip


def test_a_row_is_the_median_of_its_rounds():
    rows = [dict(ROW, seconds=s, peak_mb=p) for s, p in ((4.0, 1.0), (2.0, 3.0), (3.0, 2.0))]
    row = verify.median(rows)
    assert (row["seconds"], row["peak_mb"]) == (3.0, 2.0)
    assert row["all_seconds"] == [4.0, 2.0, 3.0]


def test_the_table_says_what_was_left_out():
    page = verify.table([ROW], {"cores": "2"})
    assert "- cores: 2" in page
    assert "| matmul 4096 | clean | 8 | 2 of 128 | 2.0 | 1.9 | 250 | 12 | 80 |" in page
    assert "- matmul 4096: k_0: 16 of 64 turns, period 8" in page


def test_a_case_is_measured_in_a_process_of_its_own(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(verify, "in_fresh_process", lambda name: dict(ROW, case=name))
    monkeypatch.setattr(verify, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["verify", "--rounds", "2", "--save"])
    verify.main()
    page = capsys.readouterr().out
    assert all(f"| {name} |" in page for name in verify.ALL)
    (saved,) = tmp_path.glob("verify_*.json")
    assert len(json.loads(saved.read_text())["rows"]) == len(verify.ALL)
    assert saved.with_suffix(".md").read_text() == page.removesuffix("\n")


def test_a_process_that_fails_is_an_error(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "no memory")
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: failed)
    with pytest.raises(RuntimeError, match="pointwise: no memory"):
        verify.in_fresh_process("pointwise")


@pytest.mark.timing
@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("matmul 4096", 8),
        pytest.param("matmul 8192", 14, marks=pytest.mark.slow),
        pytest.param("pointwise 2^24", 4, marks=pytest.mark.slow),
    ],
)
def test_verify_is_quick_and_small(name, seconds):
    row = verify.in_fresh_process(name)
    assert row["verdict"] == "clean"
    assert row["schedules"] == 8
    assert row["cpu_seconds"] < seconds  # of this process: others may share the machine
    assert row["peak_mb"] < 700
