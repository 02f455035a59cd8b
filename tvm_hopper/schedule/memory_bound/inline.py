"""Inline chains of elementwise blocks, except expensive ones with several uses.

E[i, j] = exp(X[i, j] - M[i])                       kept: an exp, and S and Y both read it
S[i] += E[i, k]
D[i, j] = E[i, j] / S[i]                            inlined into Y
Y[i, j] = cast(D[i, j])
"""

from __future__ import annotations

import contextlib
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.reasons import TVM_ERRORS, in_words

from .program import MemoryProgram, Part, is_plain, plain_index, results, same_extents

MOST_NODES = 24  # operations of an expression that is computed once for each of its uses
# Instructions of functions in the forms of memory-bound kernels, counted in their formulas
# (transforms/math/approximate_functions_plan.py); of other functions and divisions about as many.
FUNCTION_INSTRUCTIONS = {"erf": 16, "tanh": 12, "exp": 3, "sigmoid": 6, "rsqrt": 2, "sqrt": 4}
OTHER_INSTRUCTIONS, DIVISION_INSTRUCTIONS = 12, 8
_DEAR = (tirx.Div, tirx.FloorDiv, tirx.FloorMod)


def inline_parts(
    program: MemoryProgram, recompute: bool = False, kept: frozenset[str] = frozenset()
) -> list[Part]:
    """Inline elementwise blocks, from the first on; return the rest.

    - `recompute`: whether to inline what is expensive, too, if it has one value for each element.
    - `kept`: names of blocks that stay as they are.
    """
    outputs = results(program.sch, program.parts)
    while True:
        inner = [p for p in program.parts if _may_inline(p, outputs) and p.name not in kept]
        part = next((p for p in inner if not _is_kept(p, program.parts, recompute)), None)
        if part is None:
            return program.parts
        try:
            program.inline(part)
        except TVM_ERRORS as error:
            raise cannot_schedule(
                f"block {part.name}",
                f"what TVM cannot inline{in_words(error)}",
                "elementwise blocks whose result is read element by element",
            ) from error


def inline_moves(program: MemoryProgram, kept: frozenset[str] = frozenset()) -> None:
    """Inline blocks that only move elements, as a reshape does: each reader finds its own.

    - `kept`: names of blocks that stay as they are.
    """
    outputs = results(program.sch, program.parts)
    for part in program.parts:
        moves = not part.reduced and isinstance(part.store, ir.BufferStore)
        moves = moves and isinstance(part.store.value, ir.TensorLoad) and part.name not in kept
        if moves and _may_inline(part, outputs):
            with contextlib.suppress(*TVM_ERRORS):  # `inline_parts` says which block it was
                program.sch.compute_inline(part.block)
                program.parts = [p for p in program.parts if p.block is not part.block]
    program.look_again()


def inline_permutations(program: MemoryProgram) -> None:
    """Store rows where a block that only permutes them would: Y[j, i, k] = f(X[i, j, k]).

    The block goes; the one that makes the rows stores them itself, each as one piece.
    """
    outputs = results(program.sch, program.parts)
    while True:
        parts = program.parts
        part = next((p for p in parts if _permutes_rows(p, parts, outputs)), None)
        if part is None:
            return
        program.sch.reverse_compute_inline(part.block)
        program.look_again([p for p in parts if p is not part])


def _permutes_rows(part: Part, parts: list[Part], outputs: list[Any]) -> bool:
    """Tell a block that reads rows of one other block in another order, as nothing else does."""
    variables = [x.var for x in part.spatial]
    if part.reduced or not is_plain(part.store, variables):
        return False
    for maker in parts:
        read = [(p, x) for p in parts for x in p.loads if x.source.same_as(maker.outputs[0])]
        if len(read) != 1 or read[0][0] is not part or maker.reduced:
            continue
        index = plain_index(read[0][1], variables)
        is_row = index is not None and len(index) == len(variables)
        if not is_row or not index or not index[-1].same_as(variables[-1]):
            continue
        is_inner = not any(maker.outputs[0].same_as(x) for x in outputs)
        if is_inner and not is_plain(read[0][1], variables):
            return True
    return False


def _may_inline(part: Part, outputs: list[Any]) -> bool:
    return not part.reduced and not any(b.same_as(o) for b in part.outputs for o in outputs)


def _is_kept(part: Part, parts: list[Part], recompute: bool) -> bool:
    """Tell a block whose result stays in registers: what is expensive is not computed for each use.

    One value a row is used by every element of it.
    """
    (buffer,) = part.outputs
    readers = [p for p in parts for load in p.loads if load.source.same_as(buffer)]
    by_element = any(len(p.spatial) + len(p.reduced) > len(part.spatial) for p in readers)
    if by_element and _is_of_rows(part, parts) and chooses_loads(part.store.value):
        return True
    if any(p.reduced for p in readers) and _gathers(part.store.value):
        return True  # rows are numbered by their results: what is gathered is loaded for them
    if not is_dear(part.store.value):
        return False
    if not by_element:
        return len(readers) > 1 and not recompute
    sums = [x for p in parts if p.reduced for x in p.outputs]
    return any(load.source.same_as(x) for load in part.loads for x in sums)


def _is_of_rows(part: Part, parts: list[Part]) -> bool:
    """Tell a block that has one value for each row of a reduction."""
    extents = [x.dom.extent for x in part.spatial]
    rows = ([x.dom.extent for x in p.spatial] for p in parts if p.reduced)
    return any(same_extents(extents, x) for x in rows)


def chooses_loads(value: Any) -> bool:
    """Tell a choice between values of which one is loaded: a branch wherever it is."""
    return any(
        ir.find_all(choice, ir.TensorLoad)
        for kind in (tirx.Select, ir.Call)
        for choice in ir.find_all(value, kind)
        if kind is tirx.Select or ir.is_choice(choice)
    )


def _gathers(value: Any) -> bool:
    """Tell a load at an index that is loaded itself."""
    return any(
        ir.find_all(index, ir.TensorLoad)
        for load in ir.find_all(value, ir.TensorLoad)
        for index in load.indices
    )


def count_instructions(value: Any) -> int:
    """Estimate the instructions of an expression, without those of its indices."""
    value = ir.replace(value, ir.TensorLoad, lambda x: ir.Var("loaded", ir.dtype_of(x)))
    kinds = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.Select, tirx.Cast)
    count = sum(len(ir.find_all(value, x)) for x in kinds)
    count += DIVISION_INSTRUCTIONS * sum(len(ir.find_all(value, x)) for x in _DEAR)
    for call in ir.find_all(value, ir.Call):
        name = str(call.op.name).removeprefix("tirx.")
        count += FUNCTION_INSTRUCTIONS.get(name, OTHER_INSTRUCTIONS)
    return count


def is_dear(value: Any) -> bool:
    """Tell whether an expression takes more than a few instructions; its indices do not count."""
    nodes = 0
    value = ir.replace(value, ir.TensorLoad, lambda x: ir.Var("loaded", ir.dtype_of(x)))
    for kind in (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min, tirx.Select):
        nodes += len(ir.find_all(value, kind))
    calls = [x for x in ir.find_all(value, ir.Call) if x.op.name != "tirx.if_then_else"]
    return bool(calls) or nodes > MOST_NODES or any(ir.find_all(value, kind) for kind in _DEAR)
