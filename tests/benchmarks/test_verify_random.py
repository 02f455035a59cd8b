"""Random configurations for the verifier: a few are judged, and what is not clean is printed."""

import random
import sys

import pytest

from benchmarks import verify_random
from benchmarks.verify_random import Drawn, Outcome

DRAWN = Drawn({"m": 8, "n": 8, "k": 8}, {})


def test_what_is_drawn_has_every_kind():
    rng = random.Random(0)
    drawn = [verify_random.draw(rng) for _ in range(200)]
    assert {one.problem["layout"] for one in drawn} == {"NT", "NN", "TN", "TT"}
    assert {one.config.get("persistent", "default") for one in drawn} >= {None, 0, 132, "default"}
    assert max(one.problem["k"] for one in drawn) > 4000
    assert any(one.problem["m"] % 8 for one in drawn)


@pytest.mark.parametrize("number", [4, 5])
def test_a_case_is_judged_with_its_values(number):
    found = verify_random.judge(number, seed=3)
    assert found.verdict == "clean", found.text
    assert found.has_values


def test_nothing_but_refusals_is_an_error(monkeypatch):
    bad = Drawn({"m": 64, "n": 64, "k": 64}, {"tile": (64, 12, 64)})
    monkeypatch.setattr(verify_random, "draw", lambda rng: bad)
    with pytest.raises(RuntimeError, match="case 0: 200 draws were refused, the last one with"):
        verify_random.judge(0, seed=0)


@pytest.mark.parametrize("verdict", ["clean", "error"])
def test_the_summary_tells_what_is_not_clean(monkeypatch, capsys, verdict):
    class Pool:
        def __init__(self, jobs, mp_context):
            self.jobs = jobs

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def map(self, function, numbers):
            return [Outcome(DRAWN, verdict, "the report", 1.0, True) for _ in numbers]

    monkeypatch.setattr(verify_random, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(sys, "argv", ["verify_random", "--count", "2"])
    assert verify_random.main() == (verdict == "error")
    out = capsys.readouterr().out
    assert ("the report" in out) == (verdict == "error")
    assert f"2 configurations (0.0 TFLOP): {verdict}: 2; values checked in 2" in out
