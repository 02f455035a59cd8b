"""Requested CTAs of a launch, completed to whole clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def clusters_of(
    grid: Sequence[int], cluster: Sequence[int], blocks: Any
) -> list[list[tuple[Any, ...]]]:
    """Return the CTAs of each cluster that runs: all clusters, or those with a requested block."""
    shape = tuple(-(-g // c) for g, c in zip(grid, cluster, strict=True))
    wanted = None
    if blocks is not None:
        wanted = {
            tuple(b // c for b, c in zip(_three_from_zero(block), cluster, strict=True))
            for block in blocks
        }
    found = []
    for z in range(shape[2]):
        for y in range(shape[1]):
            for x in range(shape[0]):
                if wanted is not None and (x, y, z) not in wanted:
                    continue
                found.append(
                    [
                        (x * cluster[0] + i, y * cluster[1] + j, z * cluster[2] + k)
                        for k in range(cluster[2])
                        for j in range(cluster[1])
                        for i in range(cluster[0])
                    ]
                )
    return found


def check_blocks(blocks: Any, grid: Sequence[int]) -> Any:
    """Refuse blocks that are no list of indices inside the grid, or none at all."""
    if blocks is None:
        return None
    try:
        checked = [(tuple(block), _three_from_zero(block)) for block in blocks]
    except (TypeError, ValueError):
        raise ValueError(f"blocks: found {blocks!r}; need a list of (x, y, z)") from None
    if not checked:
        raise ValueError("blocks: found none; need at least one (x, y, z), or None for all")
    for given, at in checked:
        if not all(0 <= b < g for b, g in zip(at, grid, strict=True)):
            raise ValueError(f"blocks: found {given}; need indices inside the grid {tuple(grid)}")
    return [at for _, at in checked]


def _three_from_zero(block: Sequence[int]) -> tuple[int, ...]:
    return (*map(int, block), 0, 0)[:3]


def three(value: Sequence[int]) -> tuple[int, int, int]:
    """Return x, y, z, with 1 for those that are missing."""
    x, y, z = (*map(int, value), 1, 1)[:3]
    return x, y, z
