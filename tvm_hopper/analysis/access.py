"""Affine accesses: the buffer element that a statement touches, as a function of its loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes


@dataclass(frozen=True)
class AffineAccess:
    """A load or a store of one element in perfectly nested loops.

    - `buffer`: what is touched.
    - `indices`: one for each dimension of the buffer, in elements.
    - `loops`: the loops of the nest, outermost first. Loops around the nest are no part of it:
      their variables are constants here.
    """

    buffer: ir.Var
    indices: tuple[Any, ...]
    loops: tuple[ir.For, ...]

    def axes(self, loops: Iterable[ir.For]) -> list[int]:
        """Return the dimensions along which any of some loops moves."""
        moved = [loop.loop_var for loop in loops]
        return [axis for axis, index in enumerate(self.indices) if ir.depends_on(index, moved)]

    def steps(self, loop: ir.For) -> list[int | None]:
        """Return by how many elements a loop moves along each dimension, None if not evenly."""
        return [step_of(index, loop.loop_var) for index in self.indices]

    def loop_of(self, axis: int) -> ir.For | None:
        """Return the loop whose variable is the index of a dimension."""
        index = self.indices[axis]
        while isinstance(index, tirx.Cast):  # a loop may count in a narrower type
            index = index.value
        return next((loop for loop in self.loops if loop.loop_var.same_as(index)), None)

    def start(self, loops: Iterable[ir.For]) -> tuple[Any, ...]:
        """Return the indices where some loops have the value 0."""
        zero = {loop.loop_var: 0 for loop in loops}
        return tuple(ir.simplify(ir.substitute(index, zero)) for index in self.indices)

    @property
    def strides(self) -> tuple[Any, ...]:
        """Elements from one to the next one along each dimension, ints where they are known."""
        steps = self.buffer.ty.strides
        if not steps:
            steps = [1]
            for extent in reversed(list(self.buffer.shape)[1:]):
                steps.insert(0, _times(steps[0], extent))
        known = [(ir.static_int(step), step) for step in steps]
        return tuple(step if number is None else number for number, step in known)

    def flat_step(self, loop: ir.For) -> int | None:
        """Return by how many elements of memory a loop moves, None if not known or not evenly."""
        total = 0
        for step, stride in zip(self.steps(loop), self.strides, strict=True):
            if step is None or (step and not isinstance(stride, int)):
                return None
            total += step * stride if step else 0
        return total

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return dtype_bytes(ir.dtype_of(self.buffer))

    @property
    def strides_bytes(self) -> tuple[Any, ...]:
        """Bytes from one element to the next one along each dimension, as int64 expressions."""
        return strides_bytes(self.buffer)


def _times(a: Any, b: Any) -> Any:
    numbers = ir.static_int(a), ir.static_int(b)
    if None not in numbers:
        return numbers[0] * numbers[1]  # type: ignore[operator]
    return ir.simplify(tirx.Cast("int64", b) * a)


def step_of(expr: Any, var: ir.Var) -> int | None:
    """Return by how much an expression grows with a variable, None if not evenly."""
    return ir.static_int(ir.simplify(ir.substitute(expr, {var: var + 1}) - expr))


def strides_bytes(buffer: ir.Var) -> tuple[Any, ...]:
    """Return the bytes from one element of a buffer to the next one along each dimension."""
    size = tirx.IntImm("int64", dtype_bytes(ir.dtype_of(buffer)))
    if buffer.ty.strides:
        return tuple(ir.simplify(tirx.Cast("int64", x) * size) for x in buffer.ty.strides)
    steps: list[Any] = [size]
    for extent in reversed(list(buffer.shape)[1:]):
        steps.append(steps[-1] * tirx.Cast("int64", extent))
    return tuple(ir.simplify(step) for step in reversed(steps))
