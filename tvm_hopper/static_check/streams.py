"""Rules on program order in each thread: wgmma groups, bulk groups, registers, barriers.

Each rule walks the events of one traced CTA once.  A rule says nothing where a range or a count is
not known: the simulator decides those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tvm_hopper.facts.programming_model import (
    NAMED_BARRIERS,
    THREADS_PER_WARP as WARP,
    WARP_GROUP_THREADS,
)
from tvm_hopper.facts.registers import entry_registers
from tvm_hopper.sim import findings
from tvm_hopper.sim.findings import Finding
from tvm_hopper.sim.protocol.expr import Address
from tvm_hopper.sim.protocol.trace import SyncEvent, Trace
from tvm_hopper.sim.tir import statement_text

GROUP_WIDE = ("mma", "mma_fence", "mma_commit", "mma_wait")
Range = tuple[Any, int, int]  # buffer, first register, end


def finding(rule: str, message: str, event: SyncEvent | None = None, buffer: str = "") -> Finding:
    """Make a finding of the static check."""
    statement = (statement_text(event.node),) if event is not None else ()
    if event is not None and event.loops:
        message += f" (at iteration {event.loops})"
    return findings.finding(rule, message, buffer=buffer, statements=statement, policy="static")


def groups_of(trace: Trace) -> list[slice]:
    """Return the threads of each warp group."""
    step = WARP_GROUP_THREADS
    return [slice(i, min(i + step, trace.num_threads)) for i in range(0, trace.num_threads, step)]


def before_opaque(trace: Trace) -> tuple[Trace, np.ndarray]:
    """Leave out what a warp group does after a call whose body is not known.

    Returns the trace without that, and the threads (num_threads,) of which something is left out.
    Such a body may fence, wait or commit; it stays as an event.
    """
    if not any(event.kind == "opaque" for event in trace.events):
        return trace, np.zeros(trace.num_threads, bool)
    stopped = np.zeros(trace.num_threads, bool)
    events = []
    for event in trace.events:
        if event.kind == "opaque":
            events.append(event)
            for span in groups_of(trace):
                stopped[span] |= event.mask[span].any()
        elif (mask := event.mask & ~stopped).any():
            events.append(replace(event, mask=mask))
    return replace(trace, events=events), stopped


def check_streams(trace: Trace) -> Iterator[Finding]:
    """Yield what the events of one CTA break."""
    trace, stopped = before_opaque(trace)
    yield from check_convergence(trace)
    yield from check_setmaxnreg(trace, bool(stopped.any()))
    if any(event.kind == "mma" for event in trace.events):
        for number, span in enumerate(groups_of(trace)):
            yield from check_wgmma(trace, span, f"warp group {number}")
    yield from check_bulk_groups(trace, stopped)
    yield from check_init_published(trace)
    yield from check_proxy_fence(trace)


# -- convergence and barriers --------------------------------------------------------------------


def check_convergence(trace: Trace) -> Iterator[Finding]:
    """Whole warp groups execute wgmma, whole warps aligned barriers, with counts that add up."""
    for event in trace.events:
        if event.kind in GROUP_WIDE:
            for number, span in enumerate(groups_of(trace)):
                active = int(event.mask[span].sum())
                if 0 < active < span.stop - span.start:
                    yield finding(
                        "WARP_CONVERGENCE",
                        f"{event.kind} by {active} of {span.stop - span.start} threads of warp "
                        f"group {number}; all of them must execute it",
                        event,
                    )
        elif event.kind == "barrier":
            yield from _check_barrier(trace, event)


def _check_barrier(trace: Trace, event: SyncEvent) -> Iterator[Finding]:
    number, count, _, aligned = event.values
    active = event.mask.reshape(-1, WARP).sum(1) if trace.num_threads % WARP == 0 else None
    if aligned and active is not None and ((active > 0) & (active < WARP)).any():
        yield finding(
            "WARP_CONVERGENCE",
            f"aligned barrier by {int(active[active > 0].min())} of {WARP} threads of a warp",
            event,
        )
    if not isinstance(count, int) or count == -1:
        return
    numbers: Any = np.unique(np.broadcast_to(number, event.mask.shape)[event.mask]) if (
        isinstance(number, (int, np.ndarray))
    ) else []  # fmt: skip
    if count % WARP or any(not 0 <= n < NAMED_BARRIERS for n in numbers):
        yield finding(
            "NAMED_BAR_MISMATCH",
            f"barrier {[int(n) for n in numbers]} with count {count}; need a number below "
            f"{NAMED_BARRIERS} and a multiple of {WARP}",
            event,
        )
    for value in numbers:
        members = int((event.mask & (number == value)).sum())
        if members > count:
            yield finding(
                "NAMED_BAR_MISMATCH",
                f"barrier {int(value)}: {members} threads meet here, its count is {count}",
                event,
            )
        if value == 0 and count != trace.num_threads:
            yield finding(
                "NAMED_BAR_MISMATCH",
                f"barrier 0 with count {count} is also __syncthreads of {trace.num_threads}",
                event,
            )


def check_setmaxnreg(trace: Trace, partly: bool = False) -> Iterator[Finding]:
    """Direction, whole groups, and the pool that the groups share, unless they show it `partly`."""
    events = [e for e in trace.events if e.kind == "setmaxnreg"]
    if not events:
        return
    if not trace.launch_bounds:
        yield finding(
            "SETMAXNREG_IGNORED",
            "the kernel states no register count at entry (launch bounds with a minimum of blocks)",
            events[0],
        )
    entry = entry_registers(trace.num_threads, trace.arch, trace.launch_bounds)
    current = dict.fromkeys(range(len(groups_of(trace))), entry)
    for event in events:
        target, action = event.values
        if not isinstance(target, int):
            continue
        for number, span in enumerate(groups_of(trace)):
            active = int(event.mask[span].sum())
            if not active:
                continue
            if active < span.stop - span.start:
                yield finding(
                    "SETMAXNREG_PARTIAL",
                    f"executed by {active} threads of warp group {number}", event,
                )  # fmt: skip
            if (action == "dec" and target > current[number]) or (
                action == "inc" and target < current[number]
            ):
                yield finding(
                    "SETMAXNREG_DIRECTION",
                    f"{action} to {target} from {current[number]} in warp group {number}", event,
                )  # fmt: skip
            current[number] = target
    threads = trace.num_threads
    pool = min(entry * threads, trace.arch.registers_per_block)
    wanted = sum(current[n] * (s.stop - s.start) for n, s in enumerate(groups_of(trace)))
    if wanted > pool and not partly:
        parts = " + ".join(str(v) for v in current.values())
        yield finding(
            "SETMAXNREG_BUDGET",
            f"pool {entry} * {threads} = {pool}, requested ({parts}) * {WARP_GROUP_THREADS} = "
            f"{wanted}: the last setmaxnreg.inc blocks forever",
            events[-1],
        )


# -- wgmma ---------------------------------------------------------------------------------------


@dataclass
class _Wgmma:
    """Groups of one warp group in flight."""

    fenced: bool = False
    touched: list[Range] = field(default_factory=list)  # since the last wgmma.fence
    shapes: list[tuple[Range | None, str]] = field(default_factory=list)  # likewise, by wgmma
    open: list[tuple[Range | None, Range | None, str]] = field(default_factory=list)
    groups: list[list[tuple[Range | None, Range | None, str]]] = field(default_factory=list)

    def in_flight(self) -> Iterator[tuple[Range | None, Range | None, str]]:
        """Yield every multiply-add that no wait covers."""
        for group in self.groups:
            yield from group
        yield from self.open

    def is_in_flight(self, buffer: Any, bounds: tuple[int, int], write: bool) -> bool:
        """Tell whether registers may be read or written by what no wait covers."""
        touched = (buffer, *bounds)
        return any(
            _overlap(touched, d) or (write and _overlap(touched, a)) for d, a, _ in self.in_flight()
        )

    def lacks_fence(self, d: Range | None, a: Range | None, shape: str) -> str:
        """Say why a multiply-add needs a wgmma.fence before it; empty if it does not."""
        if not self.fenced:
            return "first wgmma without wgmma.fence"
        if any(_overlap(t, d) or _overlap(t, a) for t in self.touched):
            return "registers of this wgmma are accessed after the last wgmma.fence"
        if any(_overlap(d, other) and shape != s for other, s in self.shapes):
            return "another shape accumulates into these registers without wgmma.fence"
        return ""


def _overlap(a: Range | None, b: Range | None) -> bool:
    return a is not None and b is not None and a[0].same_as(b[0]) and a[1] < b[2] and b[1] < a[2]


def check_wgmma(trace: Trace, span: slice, where: str) -> Iterator[Finding]:
    """wgmma.fence before the first use of registers, and no access while they are in flight."""
    state = _Wgmma()
    reported: set[tuple[str, int]] = set()

    def once(rule: str, message: str, event: SyncEvent) -> Iterator[Finding]:
        key = (rule, id(event.node))
        if key not in reported:
            reported.add(key)
            yield finding(rule, f"{where}: {message}", event)

    for event in trace.events:
        if not event.mask[span].any():
            continue
        if event.kind == "register":
            buffer, bounds, _ = event.values
            if bounds is not None and state.is_in_flight(*event.values):
                text = f"{buffer.name}[{bounds[0]}:{bounds[1]}] is accessed while "
                text += f"{len(state.groups)} groups are pending"
                yield from once("WGMMA_REG_INFLIGHT", text, event)
            if bounds is not None:
                state.touched.append((buffer, *bounds))
        elif event.kind == "mma_fence":
            state.fenced, state.touched, state.shapes = True, [], []
        elif event.kind == "mma":
            if text := state.lacks_fence(*event.values):
                yield from once("WGMMA_FENCE_MISSING", text, event)
            d, _, shape = event.values
            state.open.append(event.values)
            state.shapes.append((d, shape))
        elif event.kind == "mma_commit":
            if state.open:
                state.groups.append(state.open)
                state.open = []
        elif event.kind == "mma_wait" and isinstance(event.values[0], int):
            keep = event.values[0]
            state.groups = state.groups[len(state.groups) - keep :] if keep else []


# -- bulk groups ---------------------------------------------------------------------------------


def check_bulk_groups(trace: Trace, stopped: np.ndarray) -> Iterator[Finding]:
    """Check that the thread that issues a store commits it and waits for it.

    `stopped` (num_threads,): threads of which not all is known.
    """
    stores = [e for e in trace.events if e.kind == "bulk_store"]
    if not stores:
        return
    issuers = np.logical_or.reduce([e.mask for e in stores])
    open_stores = np.zeros(trace.num_threads, int)
    pending = np.zeros(trace.num_threads, int)
    last: dict[str, SyncEvent] = {}
    for event in trace.events:
        if event.kind == "bulk_store":
            open_stores += event.mask
        elif event.kind == "bulk_commit":
            pending += event.mask & (open_stores > 0)
            open_stores[event.mask] = 0
        elif event.kind == "bulk_wait":
            count, _ = event.values
            if not (event.mask & issuers).any():
                yield finding(
                    "BULK_GROUP_MISUSE",
                    "wait_group by threads that issue no bulk store: it waits for nothing", event,
                )  # fmt: skip
            if isinstance(count, int):
                pending[event.mask] = np.minimum(pending[event.mask], count)
        else:
            continue
        last[event.kind] = event
    open_stores[stopped] = pending[stopped] = 0
    if (open_stores > 0).any():
        yield finding(
            "BULK_GROUP_MISUSE",
            f"a bulk store of thread {int(np.flatnonzero(open_stores)[0])} is never committed",
            last["bulk_store"],
        )
    if (pending > 0).any():
        thread = int(np.flatnonzero(pending)[0])
        yield finding(
            "EXIT_PENDING_ASYNC",
            f"thread {thread} exits with {int(pending[thread])} bulk group(s) whose source may be "
            "unread; cp.async.bulk.wait_group.read 0 is missing",
            last["bulk_store"],
        )


# -- publication and proxies ---------------------------------------------------------------------


def check_init_published(trace: Trace) -> Iterator[Finding]:
    """Check for a barrier of the block or cluster between mbarrier.init and its first use."""
    unpublished: dict[tuple[str, int], np.ndarray] = {}
    for event in trace.events:
        if event.kind in ("barrier", "cluster_sync", "cluster_wait", "grid_sync"):
            unpublished.clear()
        elif event.kind == "init" and isinstance(event.values[0], Address):
            address = event.values[0]
            if isinstance(address.offset, int):
                unpublished[address.space, address.offset] = event.mask
        elif unpublished and event.kind in ("wait", "arrive", "load", "expect", "copy_arrive"):
            address = event.values[0]
            if not isinstance(address, Address) or not isinstance(address.offset, int):
                continue
            by = unpublished.get((address.space, address.offset))
            if by is not None and (event.mask & ~by).any():
                yield finding(
                    "MBAR_INIT_UNPUBLISHED",
                    f"{event.kind} of the mbarrier at byte {address.offset} by threads that no "
                    "barrier orders after its init",
                    event,
                )
                return


def check_proxy_fence(trace: Trace) -> Iterator[Finding]:
    """Check for a proxy fence between ordinary stores and a bulk store of the same bytes."""
    dirty: list[tuple[str, int, int]] = []
    for event in trace.events:
        if event.kind in ("proxy_fence", "opaque"):
            dirty.clear()
        elif event.kind == "shared":
            space, low, high, write = event.values
            if write and low is not None:
                dirty.append((space, low, high))
        elif event.kind == "shared_matrix":
            address, write = event.values
            if write and isinstance(address, Address):
                offsets = np.broadcast_to(address.offset, event.mask.shape)[event.mask]
                dirty.append((address.space, int(offsets.min()), int(offsets.max()) + 16))
        elif event.kind == "bulk_store" and isinstance(event.values[0], Address):
            address = event.values[0]
            offsets = np.broadcast_to(address.offset, event.mask.shape)[event.mask]
            for space, low, high in dirty:
                if space == address.space and ((offsets >= low) & (offsets < high)).any():
                    yield finding(
                        "PROXY_FENCE_MISSING",
                        f"bulk store reads byte {int(offsets[0])}, written by ordinary stores, and "
                        "no fence.proxy.async stands between",
                        event,
                    )
                    return
