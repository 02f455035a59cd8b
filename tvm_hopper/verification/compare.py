"""Compare the output of a run with the plain program's results."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.reference.evaluate import Expected, Reference
from tvm_hopper.reference.lift import SECOND_ORDER
from tvm_hopper.sim import Finding, Result
from tvm_hopper.sim.findings import finding
from tvm_hopper.sim.races.writers import ElementWriters


@dataclass
class Comparison:
    """One output of one run.

    - `whole`: unwritten elements are compared, too.
    - `compared`, `exact`, `wrong`, `unknown`: elements that were compared; of these, those that
      must agree bit for bit; those that do not agree; those without a known bound, which were not
      compared.
    - `share`: the largest difference, as a share of its bound, where elements need not agree
      exactly.
    - `first`: index of the first wrong element.
    """

    name: str
    size: int
    writers: tuple[ElementWriters, ...]
    whole: bool = False
    compared: int = 0
    exact: int = 0
    wrong: int = 0
    unknown: int = 0
    share: float = 0.0
    first: tuple[int, ...] | None = None
    found: Any = None
    expected: Any = None
    bound: float = 0.0

    def __str__(self) -> str:
        """State how much was compared, and how exactly."""
        text = f"{self.compared} of {self.size} elements of {self.name}"
        if self.exact == self.compared:
            text += " bit for bit"
        else:
            text += f" ({self.exact} bit for bit, the others up to {self.share:.2g} of their bound)"
        return text + (f", {self.unknown} more without a bound" if self.unknown else "")

    def compared_mask(self, part: tuple[slice, ...]) -> np.ndarray:
        """Return which elements of a part are compared: with `whole` all, else those written."""
        if self.whole:
            return np.ones([each.stop - each.start for each in part], bool)
        return np.logical_or.reduce([one.written(part) for one in self.writers])

    def add(self, box: Box, counted: np.ndarray, found: np.ndarray, expected: Expected) -> None:
        """Compare one box; `counted` masks the elements that count."""
        value, error = expected.value, expected.error
        wide = found.astype(np.float64) if value.dtype == np.float64 else found
        with np.errstate(invalid="ignore"):
            exact = error == 0
            same = (wide == value) | ((wide != wide) & (value != value))
            known = exact | np.isfinite(error) | same
            gap = np.abs(wide.astype(np.float64) - value.astype(np.float64))
            bound = np.where(exact, 0, error * SECOND_ORDER)
            near = same | (~exact & (gap <= bound))
        compared = counted & known
        wrong = compared & ~near
        self.compared += int(compared.sum())
        self.exact += int((compared & exact).sum())
        self.unknown += int((counted & ~known).sum())
        self.wrong += int(wrong.sum())
        inexact = compared & ~exact & (gap > 0)
        if inexact.any():
            self.share = max(self.share, float(np.nanmax(gap[inexact] / bound[inexact])))
        if wrong.any():
            inside = tuple(int(x) for x in np.unravel_index(int(wrong.argmax()), wrong.shape))
            index = tuple(low + x for (low, _), x in zip(box, inside, strict=True))
            if self.first is None or index < self.first:
                self.first = index
                self.found, self.expected = found[inside].item(), value[inside].item()
                self.bound = float(bound[inside])

    def finding(self, where: str, result: Result) -> Finding:
        """Describe the first wrong element and its writer."""
        assert self.first is not None
        last = next((w for w in reversed(self.writers) if w.written(self.first)), None)
        agents: tuple[str, ...] = ()
        statements: tuple[str, ...] = ()
        writer = "no statement wrote it"
        if last is not None:
            agent, statement = last.describe(self.first)
            agents, statements, writer = (agent,), (statement,), f"it was written by {agent}"
        index = ", ".join(map(str, self.first))
        need = "exactly" if not self.bound else f"within {self.bound:.3g}"
        array = result.outputs[self.name]
        start = int(np.ravel_multi_index(self.first, array.shape)) if self.first else 0
        return finding(
            "WRONG_VALUE",
            f"{where}, {self.name}[{index}] is {self.found}, where the plain program has "
            f"{self.expected} ({need}); {writer}; {self.wrong} of {self.compared} elements that "
            "were compared are wrong",
            buffer=self.name,
            byte_range=(start * array.itemsize, (start + 1) * array.itemsize),
            agents=agents,
            statements=statements,
            policy=result.policy,
            seed=result.seed,
        )


def compare(
    reference: Reference,
    names: Sequence[str],
    values: Mapping[str, Any],
    result: Result,
    whole: Collection[str] = (),
) -> list[Comparison]:
    """Compare every element that a run wrote, of every argument.

    - `names`: the kernel's arguments, in the order of the plain program's parameters.
    - `values` (dict): their contents before the run.
    - `whole`: arguments whose every element is compared: all stores to them ran, and the other
      elements must be those that the plain program leaves.
    """
    arguments = [values[name] for name in names]
    found = []
    boxes: dict[int, list[Box]] = {}
    for place, name in enumerate(names):
        writers = result.writers.get(name) or ()
        all_of_it = name in whole and place in reference.output_places
        if all_of_it:
            boxes[place] = [tuple((0, extent - 1) for extent in values[name].shape)]
        elif writers:
            places = np.concatenate([one.places() for one in writers])
            boxes[place] = cover(places if len(writers) == 1 else np.unique(places, axis=0))
            if reference.emitter.checks and max(map(np.size, arguments)) > LARGE:
                boxes[place] = [row for box in boxes[place] for row in _rows(box)]
        else:
            continue
        one = Comparison(name, values[name].size, writers, all_of_it)
        found.append(one)
        if place not in reference.output_places:  # it has to stay unchanged
            for box in boxes.pop(place):
                part = _slices(box)
                after = result.outputs[name][part]
                before = values[name][part].astype(after.dtype)
                unchanged = Expected(box, before, np.zeros(before.shape))
                one.add(box, one.compared_mask(part), after, unchanged)
    by_name = {one.name: one for one in found}
    for wanted in _together(boxes):
        for place, expected in reference.evaluate(arguments, wanted).items():
            name, part = names[place], _slices(expected.box)
            one = by_name[name]
            one.add(expected.box, one.compared_mask(part), result.outputs[name][part], expected)
    return found


def _together(boxes: Mapping[int, list[Box]]) -> list[dict[int, Box]]:
    """Join equal boxes of several outputs: they share intermediate results."""
    if len({len(some) for some in boxes.values()}) == 1:
        return [dict(zip(boxes, some, strict=True)) for some in zip(*boxes.values(), strict=True)]
    return [{place: box} for place, some in boxes.items() for box in some]


def _rows(box: Box) -> list[Box]:
    """Cut a box along its first axis: what loaded indices pick for two rows may lie far apart."""
    return [((i, i), *box[1:]) for i in range(box[0][0], box[0][1] + 1)] if box else [box]


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high + 1) for low, high in box)


Box = tuple[tuple[int, int], ...]  # the first and the last index of each axis
LARGE = 1 << 24  # elements of a tensor: computed for one row of an output, not for all between two
SMALL = 4096  # elements of a box that is not cut any further
DENSE = 2  # a box holds at most so many times its elements, unless it is small


def cover(places: np.ndarray) -> list[Box]:
    """Return boxes around elements, in the order of their first corners.

    - `places` (numpy.ndarray): indices of the elements, (count, dimensions).
    """
    return sorted(_cut(places)) if len(places) else []


def _cut(places: np.ndarray) -> list[Box]:
    low, high = places.min(axis=0), places.max(axis=0)
    extents = high - low + 1
    volume = math.prod(map(int, extents))
    if volume <= max(DENSE * len(places), SMALL):
        return [tuple((int(a), int(b)) for a, b in zip(low, high, strict=True))]
    axis, at = _widest_gap(places) or (int(extents.argmax()), int(low[extents.argmax()]) - 1)
    if at < low[axis]:
        at = int(low[axis] + high[axis]) // 2
    below = places[:, axis] <= at
    return [*_cut(places[below]), *_cut(places[~below])]


def _widest_gap(places: np.ndarray) -> tuple[int, int] | None:
    """Return an axis and an index after which the most indices in a row are of no element."""
    found = None
    widest = 1
    for axis in range(places.shape[1]):
        present = np.unique(places[:, axis])
        gaps = np.diff(present)
        if len(gaps) and gaps.max() > widest:
            widest = int(gaps.max())
            found = axis, int(present[gaps.argmax()])
    return found
