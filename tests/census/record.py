"""Lower a kernel of the census: which passes change it, and what comes out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext

from tvm_hopper import ir, pipeline
from tvm_hopper.requests.keys import PREFIX

from .kernels import Subject


@pass_instrument
class _Recorder:
    """Notes the names of those of our passes that change the module."""

    def __init__(self) -> None:
        self.acted: list[str] = []
        self._before: list[tvm.IRModule] = []  # a pass of a module runs one of its functions

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        self._before.append(mod)

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        before = self._before.pop()
        name = info.name.removeprefix(PREFIX)
        if name == info.name or name in self.acted:
            return
        if not tvm_ffi.structural_equal(before, mod):
            self.acted.append(name)


@dataclass(frozen=True)
class Recorded:
    """What the census keeps of a kernel."""

    passes: list[str]
    final: str  # a hash of the text, which is not kept
    text: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return what is kept."""
        return {"passes": self.passes, "final": self.final}


def record(subject: Subject) -> Recorded:
    """Lower one kernel."""
    mod = subject.make()
    recorder = _Recorder()
    with PassContext(config=subject.options, instruments=[recorder]):
        lowered = pipeline.lower_final(mod, subject.target)
    text = "\n".join(_text(half) for half in (lowered.host, lowered.device))
    return Recorded(recorder.acted, hashlib.sha256(text.encode()).hexdigest()[:16], text)


def _text(mod: tvm.IRModule) -> str:
    """Return a module as text, without what `explain` reads: words may change, kernels not."""
    bare = {gv: func.without_attr(ir.PLAN_ATTR) for gv, func in mod.functions.items()}
    return str(tvm.IRModule(bare).script())
