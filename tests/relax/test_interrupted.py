"""Ctrl-C in a build of a model is a KeyboardInterrupt, wherever it comes, and changes nothing."""

from __future__ import annotations

import sys

import pytest
import tvm_ffi
from tvm.target import Target

import tvm_hopper
from tests.relax.test_pipeline import Linear, build
from tvm_hopper import ir
from tvm_hopper.testing import workloads

PARTS = 4  # of a build, at whose ends it is interrupted


class InterruptedCall:
    """Counts calls of Python functions, and interrupts one of them."""

    def __init__(self, number: int | None = None) -> None:
        self.count, self.number = 0, number

    def __call__(self, _frame, event: str, _arg) -> None:
        if event != "call":
            return
        self.count += 1
        if self.count == self.number:
            sys.setprofile(None)
            raise KeyboardInterrupt

    def run(self) -> str:
        sys.setprofile(self)
        try:
            return tvm_hopper.capture.cuda_sources(build(Linear, classes=()))[0]
        finally:
            sys.setprofile(None)


def test_wherever_it_comes():
    build(Linear, classes=())  # what is imported or found once
    whole = InterruptedCall()
    text = whole.run()
    for part in range(1, PARTS):
        with pytest.raises(KeyboardInterrupt):
            InterruptedCall(whole.count * part // PARTS).run()
        assert Target.current(allow_none=True) is None
    assert InterruptedCall().run() == text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_through_a_callback_of_tvm(error):
    def stop():
        raise error

    with pytest.raises(error):
        tvm_ffi.convert(stop)()


def test_memory_is_whole_after_an_error_in_a_rewrite(monkeypatch):
    """A map in post order whose callback raises leaves tvm_ffi's memory corrupt."""
    body = workloads.matmul(64, 64, 64)["main"].body
    both = ir.seq(body, ir.seq(body, ir.seq(), body))

    def fail(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tvm_hopper.ir.rewrite._is_empty", fail)
    for _ in range(100):
        with pytest.raises(KeyboardInterrupt):
            ir.drop_empty(both)
