"""Mutators for TVM's evolutionary search: change one sampled decision of a trace."""

from __future__ import annotations

import random
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms


@derived_object
class MutateSample(ms.mutator.PyMutator):
    """Takes another candidate of one sample that has several."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, trace: Any, *_: Any) -> Any:
        """Return a trace with another decision, None if there is nothing to decide."""
        open_ = [
            x for x in trace.insts if x.kind.name == "SampleCategorical" and len(x.attrs[0]) > 1
        ]
        if not open_:
            return None
        chosen = self._random.choice(open_)
        old = int(trace.decisions[chosen])
        others = [i for i in range(len(chosen.attrs[0])) if i != old]
        return trace.with_decision(chosen, self._random.choice(others), True)

    def clone(self) -> Any:
        """Return a mutator that goes on by itself."""
        return MutateSample(self._random.randrange(1 << 30))
