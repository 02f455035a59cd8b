"""One row of the catalogue: a right kernel, and one bug seeded in it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .golden.common import Kernel


@dataclass(frozen=True)
class Golden:
    """One right kernel: its builder and the parameters that select a form of it."""

    name: str
    make: Callable[..., Kernel]
    options: dict[str, Any] = field(default_factory=dict)

    def build(self, mutation: str | None = None) -> Kernel:
        """Build it, right or with one mutation."""
        return self.make(mutation, **self.options)


@dataclass(frozen=True)
class Mutation:
    """One seeded bug.

    `expected` is read as: of each group at least one rule must be found.  `layers` says which
    judges must find it: S the static check of the device function, V the simulator under some
    policy, X the exploration of the role skeleton, N the numbers, P the assembler's log.
    `source` names the project and issue of a bug that is published.
    """

    id: str
    golden: Golden
    change: str
    expected: tuple[frozenset[str], ...]
    layers: str
    source: str = ""

    def build(self) -> Kernel:
        """Build the wrong kernel."""
        return self.golden.build(self.id)


Row = tuple[str, Golden, str, str, str] | tuple[str, Golden, str, str, str, str]

READ, OVERWRITE, WRITE = "RACE_READ_INFLIGHT", "RACE_OVERWRITE_BUSY", "RACE_WRITE_WRITE"
REG, FENCE = "WGMMA_REG_INFLIGHT", "PROXY_FENCE_MISSING"
WAR = "PROXY_FENCE_MISSING_WAR"
OVERFLOW, ALIAS, TX = "MBAR_ARRIVE_OVERFLOW", "MBAR_PHASE_ALIAS", "MBAR_TX_MISMATCH"
UNPUBLISHED = "MBAR_INIT_UNPUBLISHED"
NUMBERS = "WRONG_NUMBERS"  # the judge is the comparison with the reference


def mutations(rows: Iterable[Row]) -> tuple[Mutation, ...]:
    """Read rows of id, kernel, change, expected rules as `A/B + C`, judges, and source."""
    return tuple(
        Mutation(
            id,
            golden,
            change,
            tuple(frozenset(group.split("/")) for group in expected.split(" + ")),
            layers,
            *source,
        )
        for id, golden, change, expected, layers, *source in rows
    )
