"""Tell whether a program reads only ring slots that it copied itself, on every path.

Then nothing of the ring has to outlive the body: what it holds before it does not matter.
"""

from __future__ import annotations

from .program import Body, Branch, Buffer, Loop, Step

Versions = frozenset[int]  # that were copied whole, relative to the ring's counter


class _ReadsWhatItFinds(Exception):
    """Some path reads a version that the body has not copied."""


def reads_its_own_copies(body: Body, ring: Buffer) -> bool:
    """Tell whether every version of a ring that a body reads was copied in it before.

    A copy that is made only if it is read (`Step.only_if_read`) counts: who reads it relies on it.
    Other writes do not count, since they may leave elements as they were.
    """
    try:
        _sequence(body, ring, frozenset())
    except _ReadsWhatItFinds:
        return False
    return True


def _sequence(body: Body, ring: Buffer, copied: Versions) -> Versions:
    for statement in body:
        if isinstance(statement, Step):
            copied = _step(statement, ring, copied)
        elif isinstance(statement, Loop):
            copied = _loop(statement, ring, copied)
        else:
            copied = _branch(statement, ring, copied)
    return copied


def _step(step: Step, ring: Buffer, copied: Versions) -> Versions:
    own = [access for access in step.accesses if access.buffer == ring]
    copies = step.op is not None
    if any(not (x.is_write and copies) and x.ahead not in copied for x in own):
        raise _ReadsWhatItFinds
    for access in own:
        if access.is_write and copies:
            gone = {v for v in copied if (v - access.ahead) % ring.num_slots == 0}
            copied = (copied - gone) | {access.ahead}
    return copied


def _branch(branch: Branch, ring: Buffer, copied: Versions) -> Versions:
    ends = [_sequence(arm, ring, copied) for arm in branch.arms]
    return frozenset.intersection(*ends)


def _loop(loop: Loop, ring: Buffer, copied: Versions) -> Versions:
    """Find what holds before every iteration: it only shrinks until it stays."""
    while True:
        advance = int(ring in loop.advances)
        behind = frozenset(x - advance for x in _sequence(loop.body, ring, copied))
        if behind >= copied:
            return behind if loop.min_trips else copied
        copied &= behind
