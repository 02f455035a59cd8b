"""Ranges of a model's calls, with stand-ins for the packages that make them."""

from __future__ import annotations

import importlib.util
import sys
import types

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I, relax as R

import tvm_hopper
from tvm_hopper import HopperError


@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = R.exp(x)
        return R.add(y, R.const(1.0))


@pytest.mark.parametrize("package", ["nvtx", "torch.cuda.nvtx"])
def test_each_call_has_a_range(monkeypatch, package: str) -> None:
    seen: list[str] = []
    names = ("push_range", "pop_range") if package == "nvtx" else ("range_push", "range_pop")
    made = {names[0]: seen.append, names[1]: lambda: seen.append("end")}
    monkeypatch.setitem(sys.modules, package, types.SimpleNamespace(**made))
    found, there = importlib.util.find_spec, package.partition(".")[0]
    known = {"nvtx": None, "torch": None, there: "a spec"}
    find = lambda x: known[x] if x in known else found(x)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", find)
    vm = relax.VirtualMachine(relax.build(Model, target="llvm"), tvm.cpu())
    tvm_hopper.relax.nvtx_ranges(vm)
    vm["main"](tvm.runtime.tensor(np.zeros(4, "float32")))
    calls = [x for x in seen if x != "end"]
    assert any("exp" in x for x in calls)
    assert seen.count("end") == len(calls)
    assert seen[-1] == "end"


def test_without_either_package(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        HopperError, match=r"relax\.nvtx_ranges: found no nvtx; .*pip install nvtx$"
    ):
        tvm_hopper.relax.nvtx_ranges(None)
