"""Requested CTAs of a launch, completed to whole clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    cx, cy, cz = cluster
    inside = list(indices(cluster))
    return [
        [(x * cx + i, y * cy + j, z * cz + k) for i, j, k in inside]
        for x, y, z in indices(shape)
        if wanted is None or (x, y, z) in wanted
    ]


def indices(extents: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield each (x, y, z) in the order of launch: x fastest."""
    x, y, z = map(range, extents)
    return ((i, j, k) for k in z for j in y for i in x)


def index_of(number: int, grid: Sequence[int]) -> tuple[int, int, int]:
    """Return (x, y, z) of a CTA by its number in the order of launch."""
    return number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])


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
