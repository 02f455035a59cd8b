"""The line that says what a long verification is at."""

import io
import time

import pytest

from tvm_hopper.verification import progress, verifier
from tvm_hopper.verification.progress import ProgressLine

from .test_trips import GIVEN, by_turn, ring


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(progress, "SILENT_S", 0.01)
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    monkeypatch.setattr(progress, "EVERY_LOG_S", 0.01)


def spoken(stream, wanted=None):
    with ProgressLine(wanted, stream) as line:
        line.text = "eager(0), 1 of 8 schedules"
        end = time.monotonic() + 5
        while "eager" not in stream.getvalue() and time.monotonic() < end and line.wanted:
            time.sleep(0.005)
    return stream.getvalue()


def test_a_terminal_has_one_line_that_is_wiped(hasty):
    text = spoken(Terminal())
    assert text.startswith("\rverify: 0 s, eager(0), 1 of 8 schedules")
    assert "\n" not in text
    assert text.endswith(" \r")


def test_a_log_has_none_unless_asked_for(hasty):
    assert spoken(io.StringIO()) == ""
    assert spoken(io.StringIO(), True).startswith("verify: 0 s, eager(0), 1 of 8 schedules\n")
    assert spoken(Terminal(), False) == ""


def test_what_is_done_in_two_seconds_says_nothing():
    stream = Terminal()
    with ProgressLine(None, stream) as line:
        line.text = "anything"
    assert stream.getvalue() == ""


def test_a_closed_stream_is_no_error(hasty):
    stream = Terminal()
    with ProgressLine(None, stream):
        stream.close()
        time.sleep(0.05)


def test_verify_says_what_it_is_at(monkeypatch):
    texts = []

    class Noted(ProgressLine):
        def __setattr__(self, name, value):
            if name == "text" and value:
                texts.append(value)
            super().__setattr__(name, value)

    monkeypatch.setattr(verifier, "ProgressLine", Noted)
    verifier.verify(ring(by_turn), GIVEN, runs=(("eager", 0), ("lifo", 0)), progress=False)
    assert texts == [
        "every interleaving of the roles",
        "eager(0), 1 of 2 schedules",
        "lifo(0), 2 of 2 schedules",
        "CTAs one after another",
        "indices of every CTA",
    ]
