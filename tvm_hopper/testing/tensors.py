"""Arguments of a function as its declaration wants them: strides, offsets, poison around.

    tensors = make_arguments(mod["main"], seed=0)        {"A": Tensor, "C": Tensor}
    tensors["A"].view                                    the array to pass
    tensors["C"].is_untouched_outside()

Each array is a view into memory that is one margin larger at both ends, and gaps between its rows
are poison too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from tvm_hopper import ir

from .workloads import _dtype, numpy_type

MARGIN = 64  # elements before a tensor and after it; keeps any alignment
GAP = 8  # elements that a stride or offset of free choice adds
POISON = 77


@dataclass(frozen=True)
class Place:
    """Where one tensor lies in its memory, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Elements from the first to the last."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True)
class Tensor:
    """One argument: an array, and the poisoned memory that it lies in."""

    place: Place
    memory: np.ndarray
    view: np.ndarray

    @staticmethod
    def make(place: Place, values: np.ndarray) -> Tensor:
        """Fill a tensor, and poison what lies around it."""
        dtype = numpy_type(place.dtype)
        memory = np.full(place.size + 2 * MARGIN, POISON, dtype)
        view = _at(place, memory)
        view[...] = values.astype(dtype)
        return Tensor(place, memory, view)

    def is_untouched_outside(self) -> bool:
        """Tell whether the memory around the array, and between its rows, is poison still."""
        outside = np.ones(self.memory.shape, bool)
        _at(self.place, outside)[...] = False
        return bool((self.memory[outside] == np.array(POISON, self.memory.dtype)).all())


def _at(place: Place, memory: np.ndarray) -> np.ndarray:
    strides = [s * memory.itemsize for s in place.strides]
    return np.lib.stride_tricks.as_strided(memory[MARGIN:], place.shape, strides)


def make_arguments(
    func: tirx.PrimFunc, seed: int = 0, extents: dict[str, int] | None = None
) -> dict[str, Tensor]:
    """Make every tensor argument, filled with integers from -2 to 2, inside poison."""
    rng = np.random.default_rng(seed)
    return {
        name: Tensor.make(place, rng.integers(-2, 3, place.shape))
        for name, place in places(func, extents).items()
    }


def places(func: tirx.PrimFunc, extents: dict[str, int] | None = None) -> dict[str, Place]:
    """Lay out every tensor argument of a function.

    - `func`: the scheduled or the plain function.
    - `extents`: values of its symbols by name; strides and offsets that are left out get rows a few
      elements longer than they need to be, and no offset.
    """
    values = dict(extents or {})
    found = {}
    for param in func.params:
        if not tirx.is_buffer_var(param):
            continue
        shape = tuple(_evaluate(x, values) for x in param.ty.shape)
        found[str(param.name)] = Place(shape, _strides(param, shape, values), _dtype(param))
    return found


def _strides(param: Any, shape: tuple[int, ...], values: dict[str, int]) -> tuple[int, ...]:
    compact = [1]
    for extent in reversed(shape[1:]):
        compact.append(compact[-1] * max(1, extent))
    result = list(reversed(compact))[: len(shape)]
    declared = list(param.ty.strides or ())
    for d in reversed(range(len(declared))):
        names = [x.name for x in ir.find_all(declared[d], ir.Var)]
        for name in names:
            inner = result[d + 1] * shape[d + 1] if d + 1 < len(shape) else 1
            values.setdefault(name, inner + GAP)
        result[d] = _evaluate(declared[d], values)
    return tuple(result)


def _evaluate(expr: Any, values: dict[str, int]) -> int:
    named = {var: values[var.name] for var in ir.find_all(expr, ir.Var)}
    return int(ir.simplify(ir.substitute(expr, named)))
