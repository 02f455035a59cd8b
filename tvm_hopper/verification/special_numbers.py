"""Numbers on which a wrong constant, initial value or element left out shows.

A program reduces each row to one number. Rows differ in their kind, and in the next draw of the
one after: small and negative; all alike; large and negative; one element far above the others;
few numbers that repeat; half of them -inf; small. In most kinds one element is the strict maximum
of its row, in each row and draw another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.reference.evaluate import Reference
from tvm_hopper.reference.plain import dtype_of
from tvm_hopper.reference.reductions import CHOOSING, extremes, is_linear, reduced_axes
from tvm_hopper.reference.rounding import FORMATS
from tvm_hopper.sim.launch.signature import Argument
from tvm_hopper.verification.numbers import Numbers

KINDS = 7  # a prime: rows at a fixed distance get different kinds
TOPPED = np.array([0, 2, 3, 5, 6])  # kinds with one strict maximum
TINY, BIG, FAR = 2.0**-12, 2.0**15, 200.0  # FAR: exp of it is no float32
MAGNITUDES = np.array([1, 1, TINY, 32])  # magnitudes of elements if nothing is reduced
FEW_WORK, MORE_WORK = 1 << 17, 1 << 18  # steps of the program, about, for all kinds; for all places
ONE_DRAW = 1 << 20  # steps of a draw that is made in any case
POOL = 1 << 20


@dataclass(frozen=True)
class SpecialNumbers:
    """Fills arguments for one draw.

    - `axes`: axes that are reduced, by argument; a float argument that is missing gets normal
      numbers.
    - `signs`: 1 if the program looks for maxima, -1 for minima; both, used alternately, if unknown.
    - `masks`: whether some elements are -inf.
    - `usual`: numbers of arguments that are not floats, or not reduced.
    - `placement`: number of the draw among those for other places of the maximum, which every row
      has then; -1: it is none of them.
    """

    draw: int
    axes: Mapping[str, tuple[int, ...]]
    signs: tuple[int, ...]
    masks: bool
    usual: Numbers
    placement: int = -1
    kind: str = "special"

    def fill(self, argument: Argument, array: np.ndarray) -> None:
        """Fill an argument's array."""
        if argument.dtype not in FORMATS or (self.axes and argument.name not in self.axes):
            self.usual.fill(argument, array)
            return
        rng = np.random.default_rng([self.draw, *argument.name.encode()])
        pool = rng.standard_normal(min(array.size, POOL))
        if not self.axes:
            scaled = pool * MAGNITUDES[rng.integers(0, len(MAGNITUDES), pool.size)]
            array[...] = np.resize(scaled, array.shape).astype(array.dtype)
            return
        along = self.axes[argument.name]
        kept = [axis for axis in range(array.ndim) if axis not in along]
        order = [*kept, *along]
        shape = [array.shape[axis] for axis in order]
        length = math.prod(shape[len(kept) :])
        rows = self._rows(np.resize(pool, (array.size // max(length, 1), length)), argument.dtype)
        array[...] = np.transpose(rows.reshape(shape), np.argsort(order)).astype(array.dtype)

    def _rows(self, x: np.ndarray, dtype: str) -> np.ndarray:
        """Change the rows of normal numbers into rows of their kinds."""
        if not x.size:
            return x
        count, length = x.shape
        numbers = np.arange(count)
        step = self.draw if self.placement < 0 else self.placement
        kinds = (numbers + self.draw * min(count, KINDS)) % KINDS
        if self.placement >= 0:
            kinds = TOPPED[(numbers + self.draw) % len(TOPPED)]
        turn = step // len(self.signs)
        # rows take all places in turn
        turn = turn * count + turn * math.gcd(count, length) // length
        place = places(length)[(numbers + turn) % length]
        size = np.abs(x)
        fmt = FORMATS[dtype]
        tiny, big, far = max(TINY, 4 * fmt.smallest_normal), fmt.largest / 4, fmt.largest / 2
        big, far = min(BIG, big), min(FAR, far)
        least = np.float64(np.array(-np.inf).astype(DTYPES[dtype].numpy))
        hidden = np.where(x > 0, x, -fmt.largest if np.isnan(least) else least)
        hidden = hidden if self.masks else x
        rows = np.choose(
            kinds[:, None],
            [
                -(size + 0.5) * tiny,
                np.repeat(x[:, :1] * np.array([1, tiny, 128])[numbers % 3, None], length, axis=1),
                -(1 + np.minimum(size, 4) / 5) * big,
                x,
                np.floor(2 * size) % 3 / 2 + 0.5,
                hidden,
                x * tiny,
            ],
        )
        tops = np.array([-tiny / 4, np.nan, -0.9 * big, far, np.nan, far, 8 * tiny])[kinds]
        has_top = ~np.isnan(tops)
        rows[numbers[has_top], place[has_top]] = tops[has_top]
        return rows * self.signs[step % len(self.signs)]


def places(length: int) -> np.ndarray:
    """Return all places of a row: ends and powers of two first, where errors are, then inwards."""
    powers = 1 << np.arange(max(length.bit_length(), 1))
    steps = np.arange((length + 1) // 2)
    ends = np.stack([steps, length - 1 - steps], axis=1).ravel()
    near = np.concatenate([[0, length - 1], powers - 1, powers, length - powers])
    wanted = np.concatenate([near, ends])
    wanted = wanted[(wanted >= 0) & (wanted < length)]
    return wanted[np.sort(np.unique(wanted, return_index=True)[1])]


def special_numbers(
    reference: Reference,
    arguments: Mapping[str, Any],
    drawn: set[str],
    usual: Numbers,
    share: float,
    work: float,
) -> Iterator[SpecialNumbers]:
    """Return the draws for one program: as many as its rows need, and a run may cost.

    - `arguments` (dict): the kernel's, in the order of the program's parameters.
    - `drawn`: those that the caller of `verify` does not give.
    - `usual`: for arguments that are not reduced.
    - `share`: of the rows, those that one run computes.
    - `work`: steps of the program that one run does.
    """
    program = reference.program
    names = dict(zip(program.params, arguments, strict=True))
    reduced = reduced_axes(program)
    wanted = reduced or [param for param in names if dtype_of(param) in FORMATS]
    if is_linear(program) or not any(names[buffer] in drawn for buffer in wanted):
        return
    axes: dict[str, tuple[int, ...]] = {}
    for buffer, some in reduced.items():
        rank = len(arguments[names[buffer]].shape)
        axes[names[buffer]] = (rank - 1,) if len(some) == rank > 1 else tuple(sorted(some))
    found = extremes(program)
    shapes = [(arguments[name].shape, along) for name, along in axes.items()]
    length = max((math.prod(shape[a] for a in along) for shape, along in shapes), default=1)
    size = max((math.prod(shape) for shape, _ in shapes), default=1)
    rows = max(size / max(length, 1) * share, 1)
    cost = max(work + sum(x.size for x in arguments.values() if isinstance(x, np.ndarray)) / 16, 1)
    kinds = min(math.ceil(KINDS / rows) if axes else 1, FEW_WORK // cost)
    placements = 0
    if found and is_linear(program, CHOOSING):  # no softmax follows
        placements = min(length * len(found), int(MORE_WORK // cost))
    kinds = int(max(kinds, cost <= ONE_DRAW))
    for draw in range(kinds + placements):
        placement = max(draw - kinds, -1)
        yield SpecialNumbers(draw, axes, found or (1,), bool(found), usual, placement)
