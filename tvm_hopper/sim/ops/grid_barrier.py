"""Order between grids and within one: `griddepcontrol`, `cooperative_groups::this_grid().sync()`.

TVM prints `T.cuda.grid_sync()` as that call. It is (cooperative_groups.h of CUDA 13 and its
details/sync.h) `barrier.sync 0`, then thread 0 of each block adds to a word of the driver's with
`atom.release.gpu` and polls it with `ld.acquire.gpu` until every block of the grid has, then
`barrier.sync 0` again. The driver provides the word in a cooperative launch alone: in any other one
`is_valid()` is false and the call traps, however many blocks there are.

PTX ISA 9.1, 9.7.13.13: `.wait` "causes the executing thread to wait until all prerequisite grids in
flight have completed and all the memory operations from the prerequisite grids are performed and
made visible to the current grid". Launches run one after another here. A launch with TVM's tag for
programmatic dependent launch may touch tensors of an earlier launch only after a wait. If a thread
block executes `.launch_dependents` before it waits, the next launch may begin while earlier ones
still run. In any other launch both have no effect.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper.sim.loop_cuts.balance import ARRIVE, WAIT, BarrierFlow
from tvm_hopper.sim.machine.machine import Meeting
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.races.shadow import ALL_LANES


class GridBarrier(Meeting):
    """The barrier of all CTAs that run."""

    def __init__(self, machine: Any) -> None:
        super().__init__("grid barrier", machine)
        self.arrived: set[Any] = set()  # warps

    @property
    def needed(self) -> int:
        """Warps that make a generation."""
        return len(self.machine.warps)

    def ctas_here(self) -> int:
        """Return how many CTAs have added to the driver's word."""
        return sum(self._has_arrived(cta) for cta in self.machine.ctas)

    def _has_arrived(self, cta: Any) -> bool:
        """Return whether all threads that have not exited are here, thread 0 among them."""
        here = all(warp in self.arrived for warp in cta.warps if not warp.finished)
        return here and cta.warps[0] in self.arrived

    def settle(self) -> None:
        """Go on if every CTA is here."""
        if not self.arrived or self.ctas_here() < len(self.machine.ctas):
            return
        self.arrived = set()
        self.complete()


class GridOps:
    """One warp's operations on the grid's barrier and on earlier launches; a part of `Warp`."""

    flow: BarrierFlow
    blocked_on: tuple[str, Any, int, int] | None

    def op_cuda_grid_sync(self, site: int, mask: Any) -> Wait:
        """Meet all other threads of the grid."""
        machine, self.site = self.machine, site
        if not machine.cooperative:
            text = "grid_sync in a launch that is not cooperative: it traps, whatever the grid"
            machine.add("COOPERATIVE_LAUNCH", text, key=site, statements=(machine.statement(site),))
        self._require_full(site, mask, "grid_sync")
        barrier = machine.grid_barrier
        if barrier is None:
            barrier = machine.grid_barrier = GridBarrier(machine)
        generation = barrier.generation
        barrier.arrived.add(self)
        self.flow.add(ARRIVE, barrier)
        self.flow.add(WAIT, barrier)
        barrier.published.join(self.release())
        barrier.settle()
        while barrier.generation == generation:
            here, all_ctas = barrier.ctas_here(), len(machine.ctas)
            self.waiting = f"waits the grid barrier ({here} of {all_ctas} CTAs arrived)"
            self.blocked_on = ("grid", barrier, 0, site)
            yield barrier
        self.blocked_on = None
        self.clock.join(barrier.acquirable)
        self.meet(ALL_LANES, int(barrier.acquirable.generic.epochs[self.index]))
        self.bump()

    def leave_grid(self) -> None:
        """Let the grid's barrier go on if it waited for this warp, which has exited."""
        if self.machine.grid_barrier is not None:
            self.machine.grid_barrier.settle()

    def op_griddepcontrol(self, site: int, mask: Any, mods: Any) -> None:
        """Wait for the launches before this one, or let later ones begin."""
        if mods["action"] != "wait":
            self.machine.next_began |= not self.cta.waited_for_grids
            return
        self.machine.waited_for_grids = self.cta.waited_for_grids = True
        if not self.machine.prerequisites:
            return
        lanes = self.lanes_of(mask)
        for part in self.parts_of(lanes):
            self.bundle_of(part).join_events(self.machine.prerequisites)
