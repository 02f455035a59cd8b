"""Translate the sync engine's program back into TIR, with the placed synchronisation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.sync import Loop

from .sync_items import Item

Emit = Callable[[Any, Mapping[int, ir.Var]], list[Any]]


@dataclass(frozen=True)
class BodyWriter:
    """Builds statements again, with what `emit(sync, trips)` makes of the syncs between them.

    `placed` says at which path of the engine's body syncs are. `trips` are the variables in scope
    that count the iterations of channels, by the channel's number.
    """

    placed: Mapping[tuple[int, ...], list[Any]]
    emit: Emit
    channel_of: Mapping[ir.Var, int]

    def write(self, items: list[Item]) -> ir.Stmt:
        """Build a whole body."""
        return self._sequence(items, (), {})

    def _sequence(self, items: list[Item], path: tuple[int, ...], trips: dict[int, ir.Var]) -> Any:
        numbers = itertools.count()
        return ir.seq(
            self._part(items, path, numbers, trips), self._syncs((*path, next(numbers)), trips)
        )

    def _part(
        self,
        items: list[Item],
        path: tuple[int, ...],
        numbers: Iterator[int],
        trips: dict[int, ir.Var],
    ) -> list[Any]:
        out: list[Any] = []
        for item in items:
            if item.node is None:
                inner = self._part(item.inner[0], path, numbers, trips)
                out.append(item.rebuilt([ir.seq(inner)]))
                continue
            at = (*path, next(numbers))
            out += self._syncs(at, trips)
            if isinstance(item.stmt, tirx.Bind) and item.stmt.var in self.channel_of:
                trips[self.channel_of[item.stmt.var]] = item.stmt.var
            arms = [(*at, n) for n in range(len(item.inner))]
            below = [at] if isinstance(item.node, Loop) else arms
            parts = zip(item.inner, below, strict=True)
            out.append(item.rebuilt([self._sequence(x, where, dict(trips)) for x, where in parts]))
        return out

    def _syncs(self, at: tuple[int, ...], trips: Mapping[int, ir.Var]) -> list[Any]:
        return [part for sync in self.placed.get(at, ()) for part in self.emit(sync, trips)]
