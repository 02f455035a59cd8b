"""`make demo`, on a problem small enough for a test."""

import importlib.util
from pathlib import Path

import pytest

from tvm_hopper.simulation import Report

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.fixture
def demo(monkeypatch):
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "run_on_gpu", lambda m, n, k: True)
    return module


def test_the_demo_shows_that_all_is_as_it_must_be(demo, tmp_path, capsys):
    path = tmp_path / "demo.cubin"
    assert demo.main(["--shape", "200x320x200", "--cubin", str(path)]) == 0
    said = capsys.readouterr().out
    assert path.read_bytes()[:4] == b"\x7fELF"
    for word in ("HGMMA", "UTMALDG", "corner", "clean", "all as it must be"):
        assert word in said


def test_a_wrong_kernel_is_noticed(demo, tmp_path, capsys, monkeypatch):
    """By what the demo compares itself: `verify`, which is left out, is tested elsewhere."""
    simulate = demo.tvm_hopper.simulate

    def wrong(executable, inputs, **options):
        result = simulate(executable, inputs, **options)
        result.outputs["D"][...] = 0
        return result

    monkeypatch.setattr(demo.tvm_hopper, "simulate", wrong)
    monkeypatch.setattr(demo.tvm_hopper, "verify", lambda *_, **__: Report((), (), ()))
    assert demo.main(["--shape", "200x320x72", "--cubin", str(tmp_path / "demo.cubin")]) == 1
    assert "something is wrong" in capsys.readouterr().out


def test_an_instruction_that_is_missing_is_noticed(demo, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "simulate_ctas", lambda *_: True)
    monkeypatch.setattr(demo, "EVIDENCE", {"HGMMA": "", "UTCMMA": "of another chip"})
    assert demo.main(["--shape", "200x320x72", "--cubin", str(tmp_path / "demo.cubin")]) == 1
