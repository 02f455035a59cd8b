"""Lower a kernel of the census: which passes change it, and what comes out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import tvm

from tvm_hopper import ir, pipeline
from tvm_hopper.reports.passes import recorded

from .kernels import Subject


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
    with recorded(subject.options) as changes:
        lowered = pipeline.lower_final(mod, subject.target)
    text = "\n".join(_text(half) for half in (lowered.host, lowered.device))
    return Recorded([x.name for x in changes], hashlib.sha256(text.encode()).hexdigest()[:16], text)


def _text(mod: tvm.IRModule) -> str:
    """Return a module as text, without what `explain` reads: words may change, kernels not."""
    bare = {gv: func.without_attr(ir.PLAN_ATTR) for gv, func in mod.functions.items()}
    return str(tvm.IRModule(bare).script())
