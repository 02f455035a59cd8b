"""Lower a kernel of the census: which passes change it, and what comes out."""

from __future__ import annotations

import hashlib
from typing import Any

import tvm

from tvm_hopper import ir, pipeline
from tvm_hopper.reports.passes import recorded

from .kernels import Subject


def record(subject: Subject) -> tuple[dict[str, Any], str]:
    """Lower one kernel: return what the census keeps of it, and its final text."""
    mod = subject.make()
    with recorded(subject.options) as changes:
        lowered = pipeline.lower_final(mod, subject.target)
    text = "\n".join(_text(half) for half in (lowered.host, lowered.device))
    final = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {"passes": [x.name for x in changes], "final": final}, text


def _text(mod: tvm.IRModule) -> str:
    """Return a module as text, without what `explain` reads: words may change, kernels not."""
    bare = {gv: func.without_attr(ir.PLAN_ATTR) for gv, func in mod.functions.items()}
    return str(tvm.IRModule(bare).script())
