"""Draw tensors that say how long loops over rows are, in several ways.

    for e in range(8):
        for i in range(P[e + 1] - P[e]): C[P[e] + i, j] = ...     P rises from 0 to the rows of C
        for i in range(L[e]): D[e, i, j] = ...                    L[e] is at most the rows of D[e]

Other integers would let groups overlap, which such a program leaves undefined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from tvm_hopper import ir

WAYS = ("equal", "ragged", "one")


@dataclass(frozen=True)
class Lengths:
    """One tensor that says how long loops are.

    - `rises`: whether differences of neighbours are lengths.
    - `limit`: the largest element.
    - `outputs`: parameters of whose rows a call may leave some as they are.
    """

    place: int
    rises: bool
    limit: int
    outputs: tuple[int, ...]

    def draw(self, count: int, way: str, rng: np.random.Generator) -> np.ndarray:
        """Return elements: equal groups, ragged ones that leave rows over, or one group alone."""
        groups = count - self.rises
        even = np.arange(1, groups + 1) * self.limit // max(groups, 1)
        ends = {
            "equal": even,
            "ragged": np.append(np.sort(rng.integers(0, self.limit + 1, groups)[1:]), self.limit)
            * 7
            // 8,
            "one": np.where(np.arange(groups) < groups // 2, 0, self.limit),
        }[way]
        if self.rises:
            return np.concatenate([[0], ends])[:count]
        if way == "ragged":
            return rng.permutation(np.resize([self.limit * 7 // 8, 0, 1, self.limit // 2], count))
        return np.full(count, self.limit) if way == "equal" else np.diff(ends, prepend=0)


def find_lengths(func: tirx.PrimFunc, sizes: Mapping[Any, int]) -> list[Lengths]:
    """Find the parameters of a plain program that say how long loops are; `sizes` of its variables.

    A loop that ends at such a number by its block's condition is one, too.
    """
    found: dict[int, Lengths] = {}
    for loop in ir.find_all(func.body, ir.For):
        for length in (loop.extent, *_limits(loop)):
            tensor, rises = _said_by(length)
            place = next((i for i, x in enumerate(func.params) if x.same_as(tensor)), None)
            limit = _limit(loop, sizes)
            if place is None or limit is None:
                continue
            stored = [x.buffer for x in ir.find_all(loop, ir.BufferStore)]
            outputs = _reached(func, stored)
            known = found.get(place)
            if known is not None:
                limit, outputs = min(limit, known.limit), [*known.outputs, *outputs]
            found[place] = Lengths(place, rises, limit, tuple(dict.fromkeys(outputs)))
    return list(found.values())


def _limits(loop: ir.For) -> list[Any]:
    realizes = ir.find_all(loop, ir.SBlockRealize)
    terms = [x for r in realizes for x in ir.conjuncts(r.predicate)]
    return [x.b for x in terms if isinstance(x, tirx.LT) and loop.loop_var.same_as(x.a)]


def _said_by(length: Any) -> tuple[Any, bool]:
    """Return the tensor that says a length, and whether by a difference; None: another length.

    The last of several may say it: `e + 1 < n ? 16 : L[b]`.
    """
    length = _plain(length)
    if ir.is_choice(length):
        length = _plain(length.args[2])
    if isinstance(length, tirx.Sub):
        end, begin = _plain(length.a), _plain(length.b)
        loads = isinstance(end, ir.TensorLoad) and isinstance(begin, ir.TensorLoad)
        if loads and end.source.same_as(begin.source) and len(end.indices) == 1:
            step = ir.simplify(end.indices[0] - begin.indices[0])
            return (end.source, True) if ir.is_const(step, 1) else (None, False)
    is_load = isinstance(length, ir.TensorLoad) and len(length.indices) == 1
    return (length.source, False) if is_load else (None, False)


def _plain(expr: Any) -> Any:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr


def _limit(loop: ir.For, sizes: Mapping[Any, int]) -> int | None:
    """Return the least extent of what the loop walks through."""
    limits = []
    for realize in ir.find_all(loop, ir.SBlockRealize):
        axes = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        at = {x.var: y for x, y in axes}
        accesses = [(x.source, x.indices) for x in ir.find_all(realize.block, ir.TensorLoad)]
        accesses += [(x.buffer, x.indices) for x in ir.find_all(realize.block, ir.BufferStore)]
        for tensor, indices in accesses:
            for index, extent in zip(indices, tensor.shape, strict=True):
                walks = ir.depends_on(ir.substitute(index, at), [loop.loop_var])
                known = ir.static_int(ir.simplify(ir.substitute(extent, dict(sizes))))
                if walks and known is not None:
                    limits.append(known)
    return min(limits, default=None)


def _reached(func: tirx.PrimFunc, stored: Sequence[Any]) -> list[int]:
    """Return the outputs that follow from tensors, each element from one."""
    reached = list(stored)
    for store in ir.find_all(func.body, ir.BufferStore):
        if any(ir.uses(store.value, x) for x in reached):
            reached.append(store.buffer)
    return [i for i, x in enumerate(func.params) if any(x.same_as(y) for y in reached)]


def draw_lengths(
    found: Sequence[Lengths], names: Sequence[str], values: Mapping[str, Any], given: Sequence[str]
) -> list[dict[str, np.ndarray]]:
    """Return inputs of several calls: what says lengths, and outputs of which rows stay.

    - `names`: of the kernel's arguments, in the order of the program's parameters.
    - `values` (mapping): all arguments; their shapes and types are looked at.
    - `given`: those that the caller decides.
    """
    drawn = [x for x in found if names[x.place] not in given]
    if not drawn:
        return [{}]
    rng = np.random.default_rng(0)
    calls = []
    for way in WAYS:
        call: dict[str, np.ndarray] = {}
        for x in drawn:
            array = values[names[x.place]]
            call[names[x.place]] = x.draw(array.size, way, rng).astype(array.dtype)
            whole = way == "equal" or (way == "one" and x.rises)
            left = () if whole else (names[i] for i in x.outputs)
            call |= {name: np.zeros_like(values[name]) for name in left if name not in given}
        calls.append(call)
    return calls
