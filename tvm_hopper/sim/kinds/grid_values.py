"""Integer expressions of a device function, for all CTAs of a launch at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import tirx

from tvm_hopper.sim.integers import BINARY, CALLS
from tvm_hopper.sim.tir import dtype_of, numpy_dtype, param_names, short_name

MAX_CTAS = 1 << 24  # longest array with one entry a CTA


class NotOfBlockError(Exception):
    """An expression depends on more than the block index and scalar parameters."""


class GridValues:
    """Evaluates expressions of the block index.

    - `func`: the device function.
    - `params` (mapping): its parameters by name, as `Launch.bind` gives them; numbers are scalars.
    - `grid`: extents x, y, z in CTAs. A CTA's number is `(x * extent_y + y) * extent_z + z`.
    - `block_vars` (mapping): variable of the function -> "blockIdx.x", "blockIdx.y" or
      "blockIdx.z".
    - `binds` (mapping): variable -> the expression that it is bound to.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        params: Mapping[str, Any],
        grid: Sequence[int],
        block_vars: Mapping[Any, str],
        binds: Mapping[Any, Any],
    ) -> None:
        self.total = int(np.prod(grid, dtype=np.int64))
        self.grid, self.binds = tuple(grid), binds
        self.env: dict[Any, Any] = {}
        for param, name in zip(func.params, param_names(func), strict=True):
            if isinstance(params.get(name), (int, np.integer)):
                self.env[param] = int(params[name])
        self.block_vars = dict(block_vars)
        self.num_more = 0  # axes after that of the CTAs, see `over`

    def over(self, axes: Mapping[Any, np.ndarray]) -> GridValues:
        """Return values with more variables, each along a new axis after the CTAs' axis."""
        wider = copy.copy(self)
        wider.num_more = len(axes)
        wider.env = {var: x for var, x in self.env.items() if not isinstance(x, np.ndarray)}
        for number, (var, numbers) in enumerate(axes.items()):
            shape = [1] * (1 + len(axes))
            shape[1 + number] = len(numbers)
            wider.env[var] = numbers.reshape(shape)
        return wider

    def blocks(self, numbers: np.ndarray) -> list[tuple[int, int, int]]:
        """Return (x, y, z) of CTAs by their numbers."""
        _, y, z = self.grid
        return [(int(n) // (y * z), int(n) // z % y, int(n) % z) for n in numbers]

    def axis(self, name: str) -> np.ndarray:
        """Return one coordinate ("x", "y" or "z") of every CTA, (total,) int64."""
        _, y, z = self.grid
        numbers = np.arange(self.total, dtype=np.int64)
        return {"x": numbers // (y * z), "y": numbers // z % y, "z": numbers % z}[name]

    def of(self, expr: Any) -> Any:
        """Return an expression's value: one int if it is the same everywhere, else (total,) int64.

        - raises NotOfBlockError: it depends on threads, loops, memory, or floats.
        """
        kind = type(expr).__name__
        if kind == "IntImm":
            return int(expr.value)
        if kind == "Var":
            return self._variable(expr)
        if kind in BINARY:
            return _integer(self._binary(kind, self.of(expr.a), self.of(expr.b)))
        if kind in ("And", "Or"):
            left, right = self.of(expr.a), self.of(expr.b)
            return left & right if kind == "And" else left | right
        if kind == "Not":
            return 1 - self.of(expr.a)
        if kind == "Select":
            return self._choose(expr.condition, expr.true_value, expr.false_value)
        if kind == "Let":
            self.env[expr.var] = self.of(expr.value)
            return self.of(expr.body)
        if kind == "Cast" and numpy_dtype(dtype_of(expr)).kind in "iub":
            value = np.asarray(self.of(expr.value)).astype(numpy_dtype(dtype_of(expr)))
            return _integer(value if value.ndim else value[()])
        if kind == "Call":
            name = short_name(expr)
            if name == "if_then_else":
                return self._choose(*expr.args)
            if name == "likely":
                return self.of(expr.args[0])
            if name in CALLS:
                return CALLS[name](self.of(expr.args[0]), self.of(expr.args[1]))
        raise NotOfBlockError(str(expr))

    def _variable(self, var: Any) -> Any:
        if var in self.env:
            return self.env[var]
        tag = self.block_vars.get(var)
        if tag is not None:
            if self.total > MAX_CTAS:
                raise NotOfBlockError(f"{self.total} CTAs")
            value: Any = self.axis(tag[-1]).reshape(-1, *(1,) * self.num_more)
        elif var in self.binds:
            value = self.of(self.binds[var])
        else:
            raise NotOfBlockError(str(var))
        self.env[var] = value
        return value

    def _binary(self, kind: str, a: Any, b: Any) -> Any:
        if kind in ("FloorDiv", "FloorMod", "Div", "Mod") and np.any(np.asarray(b) == 0):
            if not self.num_more:
                raise NotOfBlockError("a division by zero")
            b = np.where(np.asarray(b) == 0, 1, b)  # in iterations that do not run
        if any(isinstance(x, int) and not -(1 << 63) <= x < 1 << 63 for x in (a, b)):
            raise NotOfBlockError("a number of 64 bits without a sign")  # arrays are int64
        return BINARY[kind](a, b)

    def _choose(self, condition: Any, yes: Any, no: Any) -> Any:
        holds = self.of(condition)
        if not isinstance(holds, np.ndarray):
            return self.of(yes if holds else no)
        return np.where(holds != 0, self.of(yes), self.of(no))


def _integer(value: Any) -> Any:
    return value.astype(np.int64) if isinstance(value, np.ndarray) else int(value)
