"""Events of a timeline: waits, acquired phases, copies, products, findings.

An event is kept when something ends. Ordinary instructions are none: a warp that does not wait
computes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

MAX_EVENTS = 200_000
NEVER = -1  # the end of an event that was unfinished when the run ended

LOADS = ("TMA load", "bulk load", "bulk copy")
CP_ASYNC = "cp.async"
CP_ASYNC_ARRIVES = "cp.async.mbarrier.arrive"
WGMMA = "wgmma"
GLOBAL = {False: "global load", True: "global store"}


class TimelineEvent(NamedTuple):
    """Something that one warp, or a unit on its behalf, did from `start` to `end`.

    - `kind`: "life" (of a warp), "wait", "acquire" (a warp has seen a phase complete that copies
      fill), "finding", "global load", "global store", or the kind of an asynchronous operation
      ("TMA load", "wgmma", ...).
    - `cta`: block index; of a copy into shared memory that of the CTA where it lands.
    - `warp`: number in its CTA of the waiting or issuing warp; -1: a finding without a warp.
    - `start`, `end`: scheduler steps; `end` is `NEVER` if the run ended first.
    - `name`: barrier or group of a wait; tensor of a global access; rule of a finding.
    - `statement`: TIR text, shortened.
    - `it`: values of the loop variables around it.
    - `barrier`, `slot`, `phase`, `place`: the buffer of an mbarrier; its number there, in the order
      of initialisation; which of its phases, from 0; and its name in findings.
    - `addresses`: offsets in shared memory of the copied or multiplied tiles.
    - `num_bytes`: bytes that a copy moves.
    - `number`: number of the commit group in the warp, or of the finding in the result.
    - `issued_by`: the issuing warp, if it belongs to another CTA.
    - `launch`: number of the launch.
    """

    kind: str
    cta: tuple[int, ...]
    warp: int
    start: int
    end: int
    name: str = ""
    statement: str = ""
    it: tuple[int, ...] = ()
    barrier: str = ""
    slot: int = -1
    phase: int = -1
    place: str = ""
    addresses: tuple[int, ...] = ()
    num_bytes: int = 0
    number: int = -1
    issued_by: str = ""
    launch: int = 0


class Recorder:
    """Keeps the events of one run, at most `MAX_EVENTS`.

    - `on` (bool): whether anything is kept.
    - `left_out` (int): events that were one too many.
    """

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.on = True
        self.events: list[TimelineEvent] = []
        self.left_out = 0
        self.touched: dict[int, tuple[int, int]] = {}  # warp -> time and statement of the newest

    def keep(self, event: TimelineEvent) -> None:
        """Keep an event unless the limit is reached."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        else:
            self.left_out += 1

    def wait(self, warp: Any, end: int) -> None:
        """Keep a wait that ends now."""
        barrier, phase = _barrier_of(warp)
        event = TimelineEvent("wait", warp.cta.block, warp.number, warp.stopped, end)
        event = event._replace(
            name=warp.waiting, statement=self.machine.statement(warp.site), it=warp.it
        )
        self.keep(event if barrier is None else _on(event, barrier, phase))

    def acquire(self, warp: Any, site: int, barrier: Any, phase: int) -> None:
        """Keep that a warp goes on since a phase is complete that copies fill."""
        now, text = self.machine.time, self.machine.statement(site)
        event = TimelineEvent(
            "acquire", warp.cta.block, warp.number, now, now, statement=text, it=warp.it
        )
        self.keep(_on(event, barrier, phase))

    def operation(self, op: Any, end: int) -> None:
        """Keep an asynchronous operation that ends now."""
        warp, barrier = op.warp, op.barrier or op.signals
        event = TimelineEvent(
            op.kind,
            warp.cta.block,
            warp.number,
            op.start,
            end,
            statement=self.machine.statement(op.site),
            it=op.it,
            addresses=op.addresses,
            num_bytes=op.num_bytes,
            number=op.group,
        )
        if barrier is not None:
            event = _on(event, barrier, op.phase)
            if barrier.cta is not warp.cta:
                event = event._replace(cta=barrier.cta.block, issued_by=warp.label)
        self.keep(event)

    def touch(self, warp: Any, site: int, tensor: str, writes: bool) -> None:
        """Keep an access of global memory; accesses of one statement at one time count once."""
        now = self.machine.time
        if self.touched.get(warp.index) == (now, site):
            return
        self.touched[warp.index] = (now, site)
        event = TimelineEvent(GLOBAL[writes], warp.cta.block, warp.number, now, now, tensor)
        self.keep(event._replace(statement=self.machine.statement(site), it=warp.it))

    def life(self, warp: Any, end: int) -> None:
        """Keep from when to when a warp ran."""
        self.keep(TimelineEvent("life", warp.cta.block, warp.number, warp.began, end))

    def finding(self, rule: str, agent: str, number: int) -> None:
        """Keep that a finding was made now; `agent` is a warp's label, or empty."""
        cta, warp = self.machine.warp_of(agent)
        now = self.machine.time
        self.keep(TimelineEvent("finding", cta, warp, now, now, rule, number=number))

    def close(self) -> None:
        """Keep unfinished events at the end of the run."""
        for warp in self.machine.warps:
            if warp.began and not warp.finished:
                if warp.waits_for is not None:
                    self.wait(warp, NEVER)
                self.life(warp, NEVER)
        for op in self.machine.pending:
            self.operation(op, NEVER)


def _on(event: TimelineEvent, barrier: Any, phase: int) -> TimelineEvent:
    return event._replace(
        barrier=barrier.stem, slot=barrier.number, phase=phase, place=barrier.name
    )


def _barrier_of(warp: Any) -> tuple[Any, int]:
    """Return the mbarrier that a blocked warp waits for and the phase, or None."""
    blocked, thing = warp.blocked_on, warp.waits_for
    if blocked is None or (blocked[1] is not thing and warp.spinning is None):
        return None, -1
    blocked_kind, barrier, parity, _ = blocked
    if blocked_kind != "mbarrier":
        return None, -1
    # It waits for the end of a phase with this parity: the one in progress, or it has just passed.
    return barrier, barrier.phase - ((barrier.phase ^ parity) & 1)
