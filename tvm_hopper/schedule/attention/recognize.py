"""Recognise softmax attention in plain loops, however its steps are written.

    S[b, h, i, j] += Q[b, h, i, k] * K[b, h // 4, j, k]
    M[b, h, i] = max(M[b, h, i], S[b, h, i, j] * 0.125)
    E[b, h, i, j] = exp(S[b, h, i, j] * 0.125 - M[b, h, i])
    L[b, h, i] += E[b, h, i, j]
    O[b, h, i, c] += Cast("float16", E[b, h, i, j] / L[b, h, i]) * V[b, h // 4, j, c]
  ->
    Attention(query=Q[..], keys=K[..], values=V[..], score=product, scale=0.125, ...)

Elementwise steps are replaced where they are read, so that only sums and maxima are matched.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.errors import ScheduleError, cannot_schedule

from .axes import OutputAxes, find_axes
from .conditions import same
from .definitions import Definition, PlainTensors
from .description import Attention, LoopAxis, States, StoredResult
from .key_range import masked_by_infinity
from .results import RunningResults
from .scores import FLOAT32, MINUS_INFINITY, constant, masks_as_choices, take_scale, to_float32
from .sums import ScoreProduct, Sums, WeightedSum


def recognize(func: tirx.PrimFunc) -> Attention:
    """Describe the attention that a function computes.

    - raises ScheduleError: the function computes something else, or attention in a form that is not
      supported.
    """
    program = PlainTensors(func)
    sums = Sums(program)
    output, value, load = _find_output(sums)
    axes = find_axes(sums, output, value, load)
    main = sums.weighted(axes.load)
    assert main is not None
    product = sums.product(main.scores, main.key)
    states = States.make()
    score, scale = _score(program, main, product, states)
    score, more = take_scale(masked_by_infinity(score, scale, axes.row, main.key))
    scale *= more
    results = RunningResults(sums, main, states)
    found = StoredResult(output.buffer, axes.indices, results.value(axes.value))
    logs = [
        _log_sum(results, axes, other)
        for other in program.outputs
        if not other.buffer.same_as(output.buffer)
    ]
    if len(logs) > 1:
        need = "the attention and its log-sum-exp"
        raise cannot_schedule(f"tensor {logs[1].buffer.name}", "a third output", need)
    _check_sink(results, states, [found, *logs])
    unscaled = {states.row_max: states.row_max * constant(scale)} if scale != 1.0 else {}
    found, *logs = (replace(x, value=ir.substitute(x.value, unscaled)) for x in (found, *logs))
    return Attention(
        leads=axes.leads,
        row=axes.row,
        key=main.key,
        column=axes.column,
        depth=product.depth,
        query=product.query,
        keys=product.keys,
        values=main.value,
        states=states,
        score=score,
        scale=scale,
        base_two=main.base_two,
        sink=None if results.sink is None else results.sink * constant(1.0 / scale),
        probabilities=main.rounded or FLOAT32,
        output=found,
        log_sum=logs[0] if logs else None,
    )


def _check_sink(results: RunningResults, states: States, found: list[StoredResult]) -> None:
    """Refuse results of the keys' own maximum: with a sink the running one is of both."""
    alone = [
        x.buffer.name
        for x in found
        if ir.uses(x.value, states.row_max)
        and (results.asks_for_keys or not ir.uses(x.value, states.row_sum))
    ]
    if results.sink is not None and alone:
        raise cannot_schedule(
            f"tensor {alone[0]}",
            "the maximum of keys without the sink",
            "results of sums that the sink is part of",
        )


def _find_output(sums: Sums) -> tuple[Definition, Any, Any]:
    """Return the output that depends on the weighted values, its expression, and their sum."""
    program = sums.program
    found = []
    for output in program.outputs:
        value = program.value_of(output)
        for load in program.loads(value, "add"):
            total = sums.weighted(load)
            if total is not None and total.value is not None:
                found.append((output, value, load))
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(str(x[2].source.name) for x in found)
        raise cannot_schedule(
            "function", f"several sums of weighted values, {names}", "one in one output"
        )
    names = ", ".join(x.block for x in program.definitions.values() if x.operation)
    raise cannot_schedule(
        "function",
        f"the reductions {names}" if names else "no reduction",
        "softmax attention: a sum over keys of exp(score - maximum) times a value",
    )


def _score(
    program: PlainTensors, main: WeightedSum, product: ScoreProduct, states: States
) -> tuple[Any, float]:
    """Return the scores by their product, divided by a constant, and the constant."""
    term: Any = states.product
    if product.factor != 1.0:
        term = term * constant(product.factor)
    score = program.replace_load(main.scores, lambda x: term if same(x, product.load) else None)
    left = program.loads(score)
    if left:
        raise cannot_schedule(
            f"tensor {left[0].source.name}", "a reduction in the scores", "one product alone"
        )
    score = to_float32(score)
    for condition in main.where:
        score = tirx.Select(condition, score, constant(MINUS_INFINITY))
    return take_scale(masks_as_choices(score))


def _log_sum(results: RunningResults, axes: OutputAxes, output: Definition) -> StoredResult:
    """Describe an output of one element a row, in the variables of the other output."""
    value = results.program.value_of(output)
    own = [x for x in output.indices if isinstance(x, ir.Var)]
    for order in permutations([*axes.leads, axes.row], len(own)):
        if not all(_equal(x, output.domains[v]) for x, v in zip(order, own, strict=True)):
            continue
        by = {v: x.var for x, v in zip(order, own, strict=True)}
        moved = results.program.simplify(ir.substitute(value, by))
        try:
            found = results.value(moved)
        except ScheduleError:
            continue
        return StoredResult(
            output.buffer, tuple(ir.substitute(x, by) for x in output.indices), found
        )
    raise cannot_schedule(
        f"tensor {output.buffer.name}",
        "a second output that is no function of the maximum and the sum of each row",
        "the logarithm of the sum of exponentials, maximum + log(sum)",
        "compute it in a function of its own",
    )


def _equal(axis: LoopAxis, domain: Any) -> bool:
    return ir.is_const(ir.simplify(axis.extent - ir.cast_like(domain.extent, axis.extent)), 0)
