"""Loops over the elements of a tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir


@dataclass(frozen=True)
class ElementNests:
    """Builds nests around blocks of one store, over axes by their names.

    - `extents` (mapping of str to extent): the axes.
    - `dtype`: type of indices.
    """

    extents: Mapping[str, Any]
    dtype: str

    def fill(self, name: str, buffer: Any, axes: str, value: Callable[..., Any]) -> ir.Stmt:
        """Store a value to each element of a buffer, whose axes are given by their letters."""

        def store(*at: Any) -> ir.BufferStore:
            return ir.BufferStore(buffer, to(ir.dtype_of(buffer), value(*at)), list(at))

        return self.nest(name, axes, store)

    def reduce(
        self,
        name: str,
        buffer: Any,
        axes: str,
        value: Callable[..., Any],
        combine: Callable[[Any, Any], Any] = lambda x, y: x + y,
    ) -> ir.Stmt:
        """Combine elements of a buffer with values; the axes behind its own are reduced."""
        own = len(buffer.shape)

        def store(*at: Any) -> ir.BufferStore:
            old = tirx.BufferLoad(buffer, list(at[:own]))
            return ir.BufferStore(buffer, combine(old, value(*at)), list(at[:own]))

        return self.nest(name, axes, store, reduced=len(axes) - own)

    def nest(
        self,
        name: str,
        axes: str,
        store: Callable[..., ir.BufferStore],
        *,
        reduced: int = 0,
        where: Callable[..., Any] | None = None,
    ) -> ir.Stmt:
        """Build a nest; `where` tells by the loop variables whether the block runs."""
        zero = tirx.IntImm(self.dtype, 0)
        loops = [ir.Var(x, self.dtype) for x in axes]
        variables = [ir.Var(f"v{x}", self.dtype) for x in axes]
        return ir.block_nest(
            name,
            variables,
            [ir.cast_like(self.extents[x], zero) for x in axes],
            store(*variables),
            loops=loops,
            reduced=reduced,
            predicate=True if where is None else where(*loops),
        )


def to(dtype: str, value: Any) -> Any:
    """Cast a value unless it is of the type."""
    return value if ir.dtype_of(value) == dtype else tirx.Cast(dtype, value)
