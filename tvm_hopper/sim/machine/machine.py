"""The machine: CTAs with their memory, warps as generators, asynchronous operations in flight.

One OS thread; the scheduler picks the next step, so that a run is repeatable from (policy, seed),
and "no step is possible" is a deadlock that is reported at once.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable
from itertools import chain
from time import monotonic
from typing import Any

import numpy as np

from tvm_hopper.errors import HopperError
from tvm_hopper.sim.loop_cuts.balance import Cut, check_balance
from tvm_hopper.sim.machine.lanes import BudgetError, OutOfRegistersError
from tvm_hopper.sim.machine.memory import SHARED_BASE, Region, aligned_bytes, shared_base
from tvm_hopper.sim.options import NOTHING_LEFT_OUT, ShortcutError, Shortcuts
from tvm_hopper.sim.races.clocks import Bundle, Releases
from tvm_hopper.sim.races.shadow import AccessLog
from tvm_hopper.sim.report import Reporter

POLICIES = ("eager", "on_wait", "lifo", "random", "in_turn", "starve")
ROLES = re.compile(r"producer|consumer|(wg|warp)?(\d+)")
MAX_STEPS = 5_000_000
BUDGET_S = 3600.0  # seconds of one run, unless the caller gives less
STEPS_PER_LOOK = 256  # at the clock
STEPS_PER_COUNT = 128  # between two counts of written elements
MOST_WARPS = 1 << 12  # warps resident together, unless they wait for more


def check_policy(policy: str, num_warps: int | None = None) -> None:
    """Refuse a policy that is none, or that starves a role which a block of `num_warps` has not.

    - raises ValueError: with the legal ones.
    """
    name, _, role = str(policy).partition(":")
    legal = name in POLICIES and (name == "starve") == bool(role)
    if legal and role:
        found = ROLES.fullmatch(role)
        legal = found is not None
        if found is not None and found[2] and num_warps is not None:
            legal = int(found[2]) < (num_warps if found[1] == "warp" else -(-num_warps // 4))
    if not legal:
        others = ", ".join(p for p in POLICIES if p != "starve")
        count = "" if num_warps is None else f", below {num_warps} and {-(-num_warps // 4)} here"
        raise ValueError(
            f"policy: found policy={policy!r}; need {others} or starve:<role>, where the role is "
            f"producer, consumer, warp<n>, or wg<n> or <n> for a warp group{count}"
        )


class PendingOp:
    """An asynchronous operation: `steps` are run one by one, when the policy likes.

    `read_event` and `write_event` are bits in the clocks: "all sources were read", "all
    destinations are written".  `before` must be finished first (wgmma runs in order).
    """

    def __init__(self, kind: str, warp: Any, site: int) -> None:
        machine = warp.machine
        self.kind, self.warp, self.site, self.it = kind, warp, site, warp.it
        self.number = machine.num_ops
        machine.num_ops += 1
        self.read_event, self.write_event = machine.new_event(), machine.new_event()
        self.steps: deque[Callable[[], None]] = deque()
        self.read_done = self.done = False
        self.issued = True
        self.before: PendingOp | None = None
        self.waiters: list[Any] = []
        self.barrier: Any = None
        self.targets: list[Any] = []
        self.num_bytes = 0
        # for the timeline: phase of the mbarrier, places in shared memory, commit group
        self.phase = self.group = -1
        self.addresses: tuple[int, ...] = ()
        self.signals: Any = None  # the mbarrier that an arrival after cp.async is on
        self.start = machine.time

    @property
    def events(self) -> int:
        """Both events, as clock bits."""
        return 1 << self.read_event | 1 << self.write_event


class Event:
    """Something that warps wait for: named barriers, cluster barriers, register pools, spins."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiters: list[Any] = []


class Meeting(Event):
    """A barrier without a parity: each generation publishes the knowledge of its arrivals."""

    has_parity = False

    def __init__(self, name: str, machine: Any) -> None:
        super().__init__(name)
        self.machine = machine
        self.generation = 0
        self.published = self.acquirable = Bundle(machine.cluster_warps)

    def complete(self) -> None:
        """Begin the next generation, and wake the warps that wait for this one."""
        self.generation += 1
        self.acquirable, self.published = self.published, Bundle(self.machine.cluster_warps)
        self.machine.progress += 1
        self.machine.wake(self)


class CTA:
    """One thread block: shared memory, barriers, register pool."""

    def __init__(
        self, machine: Machine, block: tuple[int, ...], rank: int, cluster: Any, layout: Any
    ) -> None:
        self.machine, self.block, self.rank, self.cluster = machine, block, rank, cluster
        size = SHARED_BASE + layout.size
        data = aligned_bytes(size) if machine.values else np.zeros(size, np.uint8)
        self.shared = Region(
            f"shared memory of cta {block}", data, shared_base(rank), machine.log, False
        )
        self.shared.live = np.zeros(size, bool)
        self.shared.cta = self
        self.shared.low = SHARED_BASE
        for start, stop, name in layout.parts:
            self.shared.parts.append((start + SHARED_BASE, stop + SHARED_BASE, name))
        self.addresses = {
            key: self.shared.base + SHARED_BASE + offset for key, offset in layout.offsets.items()
        }
        self.mbarriers: dict[int, Any] = {}
        self.named: dict[int, Any] = {}
        self.warps: list[Any] = []
        self.exited = self.waited_for_grids = False
        self.cluster_barrier: Any = None  # these two are set after its warps are made
        self.warp_groups: list[Any] = []
        self.pool = Event("register pool")
        self.free_registers = 0
        self.label = f"cta{','.join(map(str, block))}"

    def retire(self) -> None:
        """Give memory back, once this CTA has ended and its copies have."""
        del self.shared, self.mbarriers, self.named, self.warp_groups, self.cluster_barrier
        self.warps = []


class Machine(Reporter):
    """All CTAs of one run, the scheduler, and its findings."""

    def __init__(
        self,
        program: Any,
        policy: str,
        seed: int,
        detect_races: bool,
        shortcuts: Shortcuts = NOTHING_LEFT_OUT,
    ) -> None:
        check_policy(policy)
        name, _, self.starved = policy.partition(":")
        super().__init__(program, policy, seed)
        self.mode = name
        self.random = random.Random(seed)
        self.log = AccessLog() if detect_races else None
        self.values, self.cuts = shortcuts.values, shortcuts.cuts
        self.recorder.on = shortcuts.values or shortcuts.recorded
        self.shortcut_failed = ""
        self.cut_loops: dict[Cut, None] = {}  # in the order met
        self.stores_left_out = False
        self.ctas: list[CTA] = []
        self.warps: list[Any] = []
        self.regions: dict[int, Region] = {}
        self.runnable: deque[Any] = deque()
        self.to_start: deque[Any] = deque()  # clusters that have not begun, each its blocks
        self.make_cluster: Callable[[Any], list[CTA]] = list
        self.started: list[CTA] = []  # the cluster that began last
        self.ended: list[list[CTA]] = []  # exited clusters that are not retired yet
        self.progress_line: Any = None  # its text shows the progress of a long run
        self.pending: dict[PendingOp, None] = {}  # in the order submitted
        self.wanted: tuple[Any, set[int]] = (None, set())  # since a warp ran, or one was submitted
        self.num_ops = self.num_events = self.time = 0
        self.access_events = 0  # events of ordinary accesses
        self.progress = 0  # grows with every change that a spinning warp could see
        self.chunks = 1 if name == "eager" else 2
        self.num_warps = 0  # warps that have begun
        self.cluster_warps = 1
        self.num_clusters = 0  # clusters of the whole run
        self.stopped = False  # ended before the kernel did
        self.out_of_budget = False
        self.stop_after: int | None = None  # elements of global tensors, see `run_kernel`
        self.ended_early = False  # ended since it has written these
        self.iterations = 0  # iterations since the last read of the clock
        self.budget_s = BUDGET_S
        self.begun = monotonic()
        self.releases: dict[int, Releases] = {}  # by address of global memory
        self.cooperative = False  # all CTAs are there together, and may meet
        self.grid_barrier: Any = None  # made by the first arrival
        self.prerequisites = 0  # clock bits: earlier launches that may still run have ended
        self.waited_for_grids = False  # some thread has executed griddepcontrol.wait
        self.next_began = False  # a CTA let the next launch begin before it had waited

    def check_time(self) -> None:
        """End the run if it has taken its time."""
        self.iterations = 0
        if monotonic() - self.begun > self.budget_s:
            raise BudgetError(f"more than {self.budget_s:.0f} s")

    def new_event(self) -> int:
        """Return a fresh clock bit."""
        self.num_events += 1
        return self.num_events - 1

    def new_access_event(self) -> int:
        """Return a fresh clock bit that stands for an ordinary access of some lanes."""
        bit = self.new_event()
        self.access_events |= 1 << bit
        return bit

    def warp_of(self, agent: str) -> tuple[tuple[int, ...], int]:
        """Return the block index and the number of the warp that a label is of."""
        name = agent.partition(" ")[0]
        for warp in self.warps:
            if warp.lane_name == name:
                return warp.cta.block, warp.number
        return (), -1

    # -- asynchronous operations ------------------------------------------------------------------

    def submit(self, op: PendingOp) -> None:
        """Put an operation in flight; under `eager` it runs at once."""
        self.pending[op] = None
        if self.mode == "eager":
            while op.steps and self.can_step(op):
                self.step(op)

    def can_step(self, op: PendingOp) -> bool:
        """Return whether an operation may take its next step."""
        return op.issued and bool(op.steps) and (op.before is None or op.before.done)

    def step(self, op: PendingOp) -> None:
        """Take one step of one operation."""
        self.time += 1
        self.progress += 1
        op.steps.popleft()()
        if not op.steps:
            op.done = op.read_done = True
            op.before = None
            del self.pending[op]
            if self.recorder.on:
                self.recorder.operation(op, self.time)
        self.wake(op)

    def wake(self, thing: Any) -> None:
        """Let all warps that wait for a resource check it once more."""
        if thing.waiters:
            if self.recorder.on:
                for warp in thing.waiters:
                    warp.woken = self.time
            self.runnable.extend(thing.waiters)
            thing.waiters.clear()

    # -- scheduler --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all warps to their end, or to a deadlock."""
        self.num_clusters = len(self.to_start)
        self._start_clusters()
        try:
            with np.errstate(all="ignore"):  # device arithmetic never warns
                self._run_all()
            if self.cut_loops:
                check_balance(self.warps)
        except HopperError:
            raise
        except ShortcutError as error:
            self.shortcut_failed = str(error)
            self.stopped = True
        except BudgetError as error:
            site = self.program.site_of(error)
            text = f"stopped: the run takes {error}; nothing is certified"
            self.add(
                "INCOMPLETE", text, key="budget", statements=(self.statement(site),) if site else ()
            )
            self.stopped = self.out_of_budget = True
        except OutOfRegistersError as error:
            site = self.program.site_of(error)
            self.add("OOB_ACCESS", f"{error} is used", statements=(self.statement(site),))
            self.stopped = True
        except Exception as error:
            self.broken(error)

    def _start_clusters(self) -> None:
        """Begin clusters in the order of launch: one by one, or as many as fit."""
        one_by_one = self.mode == "in_turn" and not self.cooperative
        while self.to_start and not (one_by_one and self.runnable):
            if self.num_warps and len(self.warps) >= MOST_WARPS and not self.cooperative:
                break
            self._start_cluster()

    def _start_cluster(self) -> None:
        self.started = self.make_cluster(self.to_start.popleft())
        for cta in self.started:
            self.runnable.extend(cta.warps)

    def cluster_exited(self, cluster: list[CTA]) -> None:
        """Start further clusters in the place of an ended one, if not all fit."""
        if not self.to_start or self.mode == "in_turn" or self.cuts:
            return
        self.ended.append(cluster)
        if len(self.ended) * self.cluster_warps >= MOST_WARPS // 4:
            self._retire_ended()
            self._start_clusters()

    def _retire_ended(self) -> None:
        busy = {id(op.warp.cta.cluster) for op in self.pending}
        self.retire([cluster for cluster in self.ended if id(cluster) not in busy])
        self.ended = [cluster for cluster in self.ended if id(cluster) in busy]
        if self.progress_line is not None:
            done, took = self.num_clusters - len(self.to_start), monotonic() - self.begun
            self.progress_line.text = (
                f"{done} of {self.num_clusters} clusters have begun; about "
                f"{took / done * len(self.to_start):.0f} s are left"
            )

    def retire(self, clusters: list[list[CTA]]) -> None:
        """Check the state of ended clusters, and free it; `KernelMachine` implements this."""

    def _run_all(self) -> None:
        while True:
            if self.time > MAX_STEPS:
                self.add("INCOMPLETE", f"stopped after {MAX_STEPS} steps", key="steps")
                self.stopped = True
                return
            if not self.time % STEPS_PER_LOOK:
                self.check_time()
            if self.stop_after is not None and self._wrote_enough(self.stop_after):
                self.stopped = self.ended_early = True
                return
            warp = self._pick()
            if warp is None:
                if self._async_step() or self._begin_next() or self._lanes_leave():
                    continue
                break
            self._resume(warp)
        blocked = [w for w in self.warps if not w.finished]
        if blocked:
            self.deadlock(blocked)
            self.stopped = True
        self.finish()

    def _begin_next(self) -> bool:
        """Let one more cluster begin, since no warp advances: one by one, if the last has ended."""
        if not self.to_start:
            return False
        if self.mode == "in_turn" and not all(cta.exited for cta in self.started):
            return False
        self._start_cluster()
        return True

    def _lanes_leave(self) -> bool:
        """Let lanes go on that wait for others of their warp, which may exit instead."""
        return any([warp.lanes_leave() for warp in self.warps if not warp.finished])

    def _wrote_enough(self, count: int) -> bool:
        """Tell, now and then, whether so many elements of global tensors were written."""
        return self.steps % STEPS_PER_COUNT == 1 and self.written_elements() >= count

    def written_elements(self) -> int:
        """Return how many elements of global tensors were written; a kernel's machine knows."""
        return 0

    def broken(self, error: Exception) -> None:
        """End the run at a statement that the simulator cannot evaluate."""
        site = self.program.site_of(error)
        where = self.statement(site) or "an asynchronous operation"
        text = f"cannot evaluate {where}: {type(error).__name__}: {error}; nothing is certified"
        self.add("INCOMPLETE", text, key="broken", statements=(where,))
        self.stopped = True

    def _pick(self) -> Any:
        if not self.runnable:
            return None
        if self.mode == "random":
            if self.pending and self.random.random() < 0.3:
                ready = [op for op in self.pending if self.can_step(op)]
                if ready:
                    self.step(self.random.choice(ready))
            index = self.random.randrange(len(self.runnable))
            self.runnable.rotate(-index)
        elif self.mode == "starve":
            for _ in range(len(self.runnable)):
                if not self.runnable[0].plays(self.starved):
                    break
                self.runnable.rotate(-1)
            else:
                while all(w.plays(self.starved) for w in self.runnable) and self._async_step():
                    pass
                others = [w for w in self.runnable if not w.plays(self.starved)]
                if others:
                    self.runnable.remove(others[0])
                    return others[0]
        elif self.mode == "lifo":
            return self.runnable.pop()
        return self.runnable.popleft()

    def _resume(self, warp: Any) -> None:
        self.time += 1
        self.steps += 1
        if self.recorder.on:
            if warp.waits_for is not None:
                self.recorder.wait(warp, warp.woken or self.time)
            elif not warp.began:
                warp.began = self.time
        warp.spinning, warp.waits_for = None, None
        warp.watched = []
        try:
            thing = next(warp.generator)
        except StopIteration:
            if self.recorder.on:
                self.recorder.life(warp, self.time)
            warp.exit()
            self.progress += 1
            return
        if thing is None:
            self.runnable.append(warp)
        else:
            warp.waits_for, warp.stopped, warp.woken = thing, self.time, 0
            thing.waiters.append(warp)

    def _async_step(self) -> bool:
        """Take one asynchronous step although no warp requests it; False if none is possible."""
        if self._spin_again():
            return True
        op = self._choose()
        if op is not None:
            self.step(op)
        return op is not None

    def _choose(self) -> PendingOp | None:
        forwards = self.mode in ("eager", "starve", "random")
        pending = iter(self.pending) if forwards else reversed(self.pending)
        ready = filter(self.can_step, pending)
        if self.mode == "random":
            return self.random.choice(found) if (found := list(ready)) else None
        first = next(ready, None)
        if forwards or first is None or self.mode == "lifo":
            return first
        state = (self.steps, self.num_ops)
        if self.wanted[0] != state:
            self.wanted = (state, self._wanted())
        return next((op for op in chain([first], ready) if op.number in self.wanted[1]), first)

    def _wanted(self) -> set[int]:
        """Operations that a blocked warp waits for (with those that must run before them)."""
        wanted: set[int] = set()
        things = {id(w.waits_for): w.waits_for for w in self.warps if not w.finished}
        for thing in things.values():
            ops = [thing] if isinstance(thing, PendingOp) else getattr(thing, "outstanding", [])
            for op in ops:
                while op is not None and op.number not in wanted:
                    wanted.add(op.number)
                    op = op.before
        return wanted

    def _spin_again(self) -> bool:
        """Let spinning warps look again, if anything changed since they last did."""
        moved = False
        for warp in self.warps:
            if warp.spinning is not None and warp.spinning != self.progress:
                if warp.unchanged():
                    warp.spinning = self.progress
                    continue
                thing = warp.waits_for
                if warp in thing.waiters:
                    thing.waiters.remove(warp)
                    self.runnable.append(warp)
                    moved = True
        return moved
