"""Separate causes from consequences among findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvm_hopper.sim import Finding

# What a wrong address or a race leads to: where such an error is found too, it comes first.
CONSEQUENCES = (
    "MBAR_TX_MISMATCH",
    "EXIT_PENDING_ASYNC",
    "DEADLOCK",
    "UNINIT_READ",
    "OUTPUT_COVERAGE",
    "WRONG_VALUE",
)


def arranged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Put causes before consequences, and tell a deadlock once: as a run met it."""
    found = list(findings)
    if any(one.rule == "DEADLOCK" and one.policy != "skeleton" for one in found):
        found = [one for one in found if one.rule != "DEADLOCK" or one.policy != "skeleton"]
    return tuple(sorted(found, key=_rank))


def apart(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return the causes, and what may follow from them: all are causes if none is an error."""
    first = min((_rank(one) for one in findings), default=0)
    if first > len(CONSEQUENCES):
        return list(findings), []
    causes = [one for one in findings if one.severity == "review" or _rank(one) == first]
    return causes, [one for one in findings if one not in causes]


def _rank(one: Finding) -> int:
    if one.severity != "error":
        return len(CONSEQUENCES) + 1
    return CONSEQUENCES.index(one.rule) + 1 if one.rule in CONSEQUENCES else 0
