"""Which CTAs of a launch to run: all if they are few or talk to each other, else the corners.

CTAs that do not communicate and whose synchronisation does not depend on their block index all run
the same protocol, so that a few of them speak for the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm_hopper.errors import VerifyError
from tvm_hopper.sim.findings import RULES, Finding
from tvm_hopper.sim.launch.host import evaluate
from tvm_hopper.sim.launch.tensors import Pointer
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.run import check_blocks, compiled

MAX_COMMUNICATING = 64
MAX_SORTED = 1 << 20  # CTAs of a launch that are sorted into kinds one by one


@dataclass(frozen=True)
class Choice:
    """The CTAs chosen of one launch."""

    kernel: str
    blocks: tuple[tuple[int, ...], ...]
    total: int
    covered: bool
    reason: str
    only_written: frozenset[str] = field(default=frozenset())

    @property
    def everything(self) -> bool:
        """Tell whether every CTA of the launch runs."""
        return len(self.blocks) >= self.total

    def findings(self) -> list[Finding]:
        """Return `INCOMPLETE` if the CTAs that do not run are not covered."""
        if self.covered:
            return []
        rule = RULES["INCOMPLETE"]
        return [
            Finding(
                "INCOMPLETE",
                rule.severity,
                f"{self.kernel}: {len(self.blocks)} of {self.total} CTAs ran: {self.reason}",
                hint="run more CTAs (max_ctas)",
                ptx_section=rule.ptx_section,
            )
        ]

    def __str__(self) -> str:
        """Say how much ran and why."""
        return f"{self.kernel}: {len(self.blocks)} of {self.total} CTAs ({self.reason})"


def choose_asked(func: Any, setup: dict[str, Any], blocks: Sequence[tuple[int, ...]]) -> Choice:
    """Take the CTAs that somebody asked for; of the others nothing is known."""
    grid = setup["grid"]
    total = grid[0] * grid[1] * grid[2]
    asked = tuple(dict.fromkeys(check_blocks(blocks, grid)))
    name = str(func.attrs["global_symbol"])
    return Choice(name, asked, total, len(asked) >= total, "as asked")


def choose_blocks(func: Any, setup: dict[str, Any], max_ctas: int) -> Choice:
    """Choose the CTAs of one launch: first, last, both edges of each axis, and the corner."""
    program = compiled(func)
    name = str(func.attrs["global_symbol"])
    grid, cluster = setup["grid"], setup["cluster"]
    total = grid[0] * grid[1] * grid[2]
    only_written = _only_written(program, setup["params"])
    if total <= max_ctas:
        return Choice(name, tuple(_all(grid)), total, True, "all", only_written)
    if program.communicates:
        if total <= MAX_COMMUNICATING:
            return Choice(
                name, tuple(_all(grid)), total, True, "all: they communicate", only_written
            )
        return Choice(
            name,
            tuple(itertools.islice(_all(grid), MAX_COMMUNICATING)),
            total,
            False,
            f"they communicate ({program.communicates[0]}), and only the first "
            f"{MAX_COMMUNICATING} were run",
            only_written,
        )
    axes = [sorted({0, min(c, g - 1), g - 1}) for g, c in zip(grid, cluster, strict=True)]
    corners = [*itertools.product(*axes)]
    ends = [(0, 0, 0), tuple(g - 1 for g in grid)]
    middle = _at(total // 2, grid)
    blocks = tuple(dict.fromkeys([*ends, *corners[: max(max_ctas - 3, 0)], middle]))
    classes = _classes(program, grid, setup["params"]) if total <= MAX_SORTED else None
    if classes is not None and len(classes) <= max_ctas:
        blocks = tuple(dict.fromkeys([*ends, *classes.values()]))
        return Choice(
            name,
            blocks,
            total,
            True,
            f"one of each of the {len(classes)} kinds of CTA, by trip counts; first, last",
            only_written,
        )
    if program.block_dependent:
        return Choice(
            name,
            blocks,
            total,
            False,
            "synchronisation depends on the block index: " + program.block_dependent[0],
            only_written,
        )
    return Choice(
        name,
        blocks,
        total,
        True,
        "first, last, edges; the others run the same protocol",
        only_written,
    )


def _all(grid: tuple[int, int, int]) -> Iterator[tuple[int, ...]]:
    """Yield every block index, the last axis fastest."""
    x, y, z = map(range, grid)
    return ((i, j, k) for i in x for j in y for k in z)


def _at(number: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return one block index of `_all`."""
    _, y, z = grid
    return number // (y * z), number // z % y, number % z


def _classes(program: Any, grid: Any, params: dict[str, Any]) -> dict[Any, Any] | None:
    """Group CTAs by the conditions and trip counts that depend on their index.

    None if nothing depends on it, or if such a condition cannot be told from the index alone.
    """
    if not program.block_controls:
        return None
    classes: dict[Any, Any] = {}
    for block in _all(grid):
        env = {var: block["xyz".index(tag[-1])] for var, tag in program.block_vars.items()}
        try:
            key = tuple(evaluate(e, env, program.binds, params) for e in program.block_controls)
        except VerifyError:
            return None
        classes.setdefault(key, block)
    return classes


def _only_written(program: Any, params: dict[str, Any]) -> frozenset[str]:
    written, read = set(), set()
    for name, value in params.items():
        if isinstance(value, (Pointer, TensorMapArg)):
            if name in program.stored_params:
                written.add(value.tensor)
            if name in program.loaded_params:
                read.add(value.tensor)
    return frozenset(written - read)
