"""Dataflow state of the sync engine: its lattice and transfer functions.

A `State` has two parts.

`touches`: what may have been done to each slot, on some path, and is not known to be over by all
threads. The key is the accessing thread, the slot and the operation. The value, `Missing`, is what
a later access may still lack:

    pending   the operation may be in flight: the least number of groups that were committed after
              its own, on any path. None: complete.
    fence     a generic access that the async proxy may not see yet
    barrier   an access that other threads than its own may not know of

Less knowledge is greater: a smaller `pending`, and `fence` and `barrier` set. The join is the union
of the keys with the lesser knowledge of each. A touch that lacks nothing is left out.

`phases`: the copies that complete on an mbarrier and were issued on every path, by version; the
value tells whether one may be in flight (`FLIES`). A wait for a phase that was never opened never
returns. So the join is the intersection of the keys, and its edge must wait for a copy in flight
that the join drops. Touches of copies name their phase and go with it, but for the fence that what
was copied through the generic proxy (cp.async) may lack.

A copy that is made only if it is read (`Step.only_if_read`) is `PROMISED`: it may be in flight, and
has a reader if it is. Only readers of that version rely on it and wait. So the join keeps it if any
path has it, and no edge demands a wait. A buffer with such copies has no other writers (`nodes`
refuses them), so all its copies in flight are promised: its phases grow from over to unknown to
promised, those of other buffers from over to in flight to unknown.

Each transfer function maps every touch and every phase by itself, and keeps the order; so the join
over paths is exact: the fixpoint knows as much as all paths together, and no less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tvm_hopper.facts.async_ops import ASYNC, GENERIC, WAIT_GROUP_READ, AsyncOp

from .nodes import Unit, Use, must_follow
from .program import Barrier, Buffer, Fence, Sync, Wait, WaitPhase

OVER, PROMISED, FLIES = 0, 1, 2  # what is known of a copy

Phase = tuple[Buffer, int]  # a copy's destination: the buffer and the version, relative to now


class Touch(NamedTuple):
    """The last access of a slot."""

    buffer: Buffer
    slot: int  # relative to the ring's counter
    is_write: bool
    by_thread: bool
    op: AsyncOp | None
    phase: Phase | None = None  # of an operation that completes on an mbarrier

    @property
    def reads_source(self) -> bool:
        """Tell whether a wait for the sources alone (`.read`) is enough."""
        if self.op is None:
            return False
        needs = self.op.read_needs if self.is_write else self.op.overwrite_needs
        return needs == WAIT_GROUP_READ


class Missing(NamedTuple):
    """Syncs that a later access of a slot may lack."""

    pending: int | None
    fence: bool
    barrier: bool

    def __bool__(self) -> bool:
        return self != (None, False, False)


@dataclass(frozen=True)
class State:
    """See the module's docstring; never changed in place."""

    touches: dict[Touch, Missing] = field(default_factory=dict)
    phases: dict[Phase, int] = field(default_factory=dict)

    def in_flight(self) -> list[Phase]:
        """Return the copies that may be in flight, in a fixed order."""
        found = [phase for phase, flies in self.phases.items() if flies == FLIES]
        return sorted(found, key=lambda phase: (phase[0].name, phase[1]))


def join(a: State, b: State) -> State:
    """Join the states of two paths."""
    phases: dict[Phase, int] = {}
    for phase in {**a.phases, **b.phases}:
        known = (a.phases.get(phase), b.phases.get(phase))
        if PROMISED in known:
            phases[phase] = PROMISED
        elif None not in known:
            phases[phase] = FLIES if FLIES in known else OVER
    touches: dict[Touch, Missing] = {}
    for state in (a, b):
        for touch, missing in state.touches.items():
            if touch.phase is None or touch.phase in phases:
                old = touches.get(touch)
                touches[touch] = missing if old is None else _weaker(old, missing)
    return State(touches, phases)


def _weaker(a: Missing, b: Missing) -> Missing:
    ages = [x.pending for x in (a, b) if x.pending is not None]
    return Missing(min(ages, default=None), a.fence or b.fence, a.barrier or b.barrier)


def advance(state: State, rings: frozenset[Buffer]) -> State:
    """Name the versions as the next iteration of a loop that advances some rings does."""

    def older(phase: Phase) -> Phase:
        return (phase[0], phase[1] - (phase[0] in rings))

    touches = {
        touch._replace(
            slot=(touch.slot - (touch.buffer in rings)) % touch.buffer.num_slots,
            phase=older(touch.phase) if touch.phase else None,
        ): missing
        for touch, missing in state.touches.items()
    }
    phases = {older(phase): known for phase, known in state.phases.items()}
    # No step reads a promised version that is as old as its ring is long (`nodes` refuses).
    past = {p for p, known in phases.items() if known == PROMISED and p[1] <= -p[0].num_slots}
    return State(
        {touch: missing for touch, missing in touches.items() if touch.phase not in past},
        {phase: known for phase, known in phases.items() if phase not in past},
    )


def apply(state: State, sync: Sync) -> State:
    """Return what is known after a sync."""
    if isinstance(sync, WaitPhase):
        phase = (sync.buffer, sync.ahead)
        touches = {t: m for t, m in state.touches.items() if t.phase != phase}
        for touch, missing in state.touches.items():
            if touch.phase == phase and missing.fence:  # all know of it, but for the other proxy
                touches[touch._replace(phase=None)] = Missing(None, True, False)
        if not sync.buffer.by_thread:  # a thread that comes after the next phase waits for another
            slot = sync.ahead % sync.buffer.num_slots
            waited = Touch(sync.buffer, slot, is_write=False, by_thread=False, op=None)
            known = touches.get(waited, Missing(None, False, True))
            touches[waited] = known._replace(barrier=True)
        return State(touches, state.phases | ({phase: OVER} if phase in state.phases else {}))
    if isinstance(sync, Wait):

        def complete(touch: Touch, missing: Missing) -> Missing:
            return missing._replace(pending=None) if _covers(sync, touch, missing) else missing

        return _map(state, complete)
    if isinstance(sync, Fence):
        return _map(state, lambda _, m: m if m.pending is not None else m._replace(fence=False))
    assert isinstance(sync, Barrier), "a Commit is part of its unit"
    return _map(state, lambda _, m: m if m.pending is not None else m._replace(barrier=False))


def _covers(wait: Wait, touch: Touch, missing: Missing) -> bool:
    if touch.op is None or touch.op.completion != wait.completion or missing.pending is None:
        return False
    return missing.pending >= wait.num_pending and (touch.reads_source or not wait.read_only)


def _map(state: State, change: Callable[[Touch, Missing], Missing]) -> State:
    changed = ((touch, change(touch, missing)) for touch, missing in state.touches.items())
    return State({touch: missing for touch, missing in changed if missing}, state.phases)


def lacks(state: State, use: Use) -> Iterator[Sync]:
    """Yield the syncs that have to are before an access, in any order."""
    if use.is_acquire:  # what the other agent did is done, after a release of this one
        return
    is_async = use.op is not None and use.op.proxy == ASYNC
    if use.is_release:
        is_async = use.buffer.proxy == ASYNC
    for touch, missing in state.touches.items():
        if not _has_to_follow(use, touch):
            continue
        if touch.phase is not None:
            if state.phases.get(touch.phase) != PROMISED or reads(use, touch.phase):
                yield WaitPhase(*touch.phase)
        elif touch.op is not None and missing.pending is not None:
            yield Wait(touch.op.completion, missing.pending, touch.reads_source)
        if missing.fence and is_async:
            yield Fence("async_proxy")
        # The elected thread knows what it did itself; a release is an arrive of every warp.
        alone = touch.by_thread and use.by_thread
        if missing.barrier and not alone and not use.is_release:
            yield Barrier()


def _has_to_follow(use: Use, touch: Touch) -> bool:
    """Tell whether an access has to come after what was done; plain ones of global memory not."""
    both_generic = use.op is None and touch.op is None and not use.is_release
    if both_generic and use.buffer.space == "global":
        return False
    return meets(touch, use) and must_follow(use, touch.is_write, touch.op)


def meets(touch: Touch, use: Use) -> bool:
    """Tell whether an access is of bytes that were touched."""
    if touch.buffer == use.buffer:
        return touch.slot == use.slot
    return touch.buffer.name in use.buffer.overlays and not use.is_release


def reads(use: Use, phase: Phase) -> bool:
    """Tell whether an access reads the version that a copy brings."""
    return not use.is_write and (use.buffer, use.ahead) == phase


def lacks_at_end(state: State) -> Iterator[Sync]:
    """Yield the waits that let nothing touch the thread block's own memory after a body.

    Writes to global memory may be under way then: the end of the kernel completes them.
    """
    for phase in state.in_flight():
        yield WaitPhase(*phase)
    for touch, missing in state.touches.items():
        if touch.op is None or touch.phase is not None or touch.buffer.space == "global":
            continue
        if missing.pending is not None:
            yield Wait(touch.op.completion, missing.pending, touch.reads_source)


def execute(state: State, unit: Unit) -> State:
    """Return what is known after a unit; its group, if it is one, is committed."""
    touches, phases = dict(state.touches), dict(state.phases)
    if unit.op is not None and unit.op.needs_commit:
        touches = {touch: _aged(touch, missing, unit) for touch, missing in touches.items()}
    copied = [
        (use.buffer, use.ahead)
        for use in unit.uses
        if use.op is not None and not use.op.needs_commit and use.is_write
    ]
    for buffer, ahead in copied:
        gone = _same_slot(phases, buffer, ahead)
        phases = {phase: flies for phase, flies in phases.items() if phase not in gone}
        touches = {touch: missing for touch, missing in touches.items() if touch.phase not in gone}
        phases[buffer, ahead] = PROMISED if unit.only_if_read else FLIES
    for use in unit.uses:
        if not use.is_release:
            touches.update(_touches(use, copied))
        # The other agent hands the slot back after an arrive of each of these threads. What else
        # lies in its bytes is no business of that agent.
        elif not use.buffer.overlays:
            touches = {t: m for t, m in touches.items() if not meets(t, use)}
    return State(touches, phases)


def _same_slot(phases: Iterable[Phase], buffer: Buffer, ahead: int) -> set[Phase]:
    """Return the phases of a buffer's slot, which a copy into it ends."""
    n = buffer.num_slots
    return {phase for phase in phases if phase[0] == buffer and (phase[1] - ahead) % n == 0}


def _aged(touch: Touch, missing: Missing, unit: Unit) -> Missing:
    """Count the group that a unit commits, if each thread that waits for a touch commits it."""
    assert unit.op is not None
    if missing.pending is None or touch.op is None or touch.op.completion != unit.op.completion:
        return missing
    if unit.by_thread and not touch.by_thread:
        return missing
    return missing._replace(pending=missing.pending + 1)


def _touches(use: Use, copied: list[Phase]) -> Iterator[tuple[Touch, Missing]]:
    touch = Touch(use.buffer, use.slot, use.is_write, use.by_thread, use.op)
    if use.op is not None and not use.op.needs_commit:
        # A source is free once the destination's phase is over, and so is the destination itself.
        for phase in [(use.buffer, use.ahead)] if use.is_write else copied:
            fence = use.op.proxy == GENERIC
            yield touch._replace(phase=phase), Missing(0, fence, False)
        return
    if use.is_acquire:
        if use.buffer.proxy == GENERIC:
            yield touch, Missing(None, True, False)
        return
    in_memory = use.buffer.space != "registers"
    is_generic = use.op is None or use.op.proxy == GENERIC
    missing = Missing(None if use.op is None else 0, in_memory and is_generic, in_memory)
    if missing:
        yield touch, missing
