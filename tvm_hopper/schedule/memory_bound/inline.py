"""Make one statement of chains of elementwise blocks, but for what is dear and used twice.

E[i, j] = exp(X[i, j] - M[i])                       kept: an exp, and S and Y both read it
S[i] += E[i, k]
D[i, j] = E[i, j] / S[i]                            inlined into Y
Y[i, j] = cast(D[i, j])
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.reasons import TVM_ERRORS, in_words

from .program import Part, find_parts, results

MOST_NODES = 24  # operations of an expression that is computed once for each of its uses
_DEAR = (tirx.Div, tirx.FloorDiv, tirx.FloorMod)


def inline_parts(
    sch: s_tir.Schedule,
    helper: str,
    recompute: bool = False,
    other: frozenset[str] = frozenset(),
    kept: frozenset[str] = frozenset(),
) -> list[Part]:
    """Inline elementwise blocks, from the first on; return what is left.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    helper : str
        Names the schedule helper in an error message.
    recompute : bool
        Whether to inline what is dear, too, if it has one value for each element.
    other : frozenset of str
        Names of blocks that belong to another kernel of the function.
    kept : frozenset of str
        Names of blocks that stay as they are.
    """
    while True:
        parts = find_parts(sch, helper, other)
        outputs = results(sch, parts)
        inner = [p for p in parts if _may_inline(p, outputs) and p.name not in kept]
        ready = [p for p in inner if not _is_kept(p, parts, recompute)]
        if not ready:
            return parts
        part = ready[0]
        try:
            sch.compute_inline(part.block)
        except TVM_ERRORS as error:
            raise cannot_schedule(
                f"block {part.name}",
                f"what TVM cannot inline{in_words(error)}",
                "elementwise blocks whose result is read element by element",
            ) from error


def _may_inline(part: Part, outputs: list[Any]) -> bool:
    return not part.reduced and not any(b.same_as(o) for b in part.outputs for o in outputs)


def _is_kept(part: Part, parts: list[Part], recompute: bool) -> bool:
    """Tell a block whose result stays in registers: what is dear is not computed for each use.

    One value a row is used by every element of it.
    """
    (buffer,) = part.outputs
    readers = [p for p in parts for load in p.loads if load.source.same_as(buffer)]
    by_element = any(len(p.spatial) + len(p.reduced) > len(part.spatial) for p in readers)
    if by_element and _chooses_loads(part.store.value):
        return True
    if not is_dear(part.store.value):
        return False
    if not by_element:
        return len(readers) > 1 and not recompute
    sums = [x for p in parts if p.reduced for x in p.outputs]
    return any(load.source.same_as(x) for load in part.loads for x in sums)


def _chooses_loads(value: Any) -> bool:
    """Tell a choice between values of which one is loaded: a branch wherever it stands."""
    return any(
        ir.find_all(choice, ir.TensorLoad)
        for kind in (tirx.Select, ir.Call)
        for choice in ir.find_all(value, kind)
        if kind is tirx.Select or choice.op.name == "tirx.if_then_else"
    )


def is_dear(value: Any) -> bool:
    """Tell whether an expression takes more than a few instructions; its indices do not count."""
    nodes = 0
    value = ir.replace(value, ir.TensorLoad, lambda x: ir.Var("loaded", ir.dtype_of(x)))
    for kind in (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.Select):
        nodes += len(ir.find_all(value, kind))
    calls = [x for x in ir.find_all(value, ir.Call) if x.op.name != "tirx.if_then_else"]
    return bool(calls) or nodes > MOST_NODES or any(ir.find_all(value, kind) for kind in _DEAR)
