"""Warp-collective instructions: elect, shuffles, votes, `bar.warp.sync`.

Only `bar.warp.sync` orders memory (PTX ISA, shfl.sync, vote.sync, elect.sync).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES, as_lanes, first_lane, is_lanes, one
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.races.lane_order import lane_bits
from tvm_hopper.sim.races.shadow import ALL_LANES


class CollectiveOps:
    """The instructions of one warp that its lanes execute together."""

    split: bool
    others: int

    def members(self, site: int, mask: Any, membermask: Any, instruction: str) -> Any:
        """Check which lanes take part; return them, None for all.

        Every thread named in `membermask` must execute the instruction, with the same mask, and an
        executing thread must be named in it (PTX ISA, shfl.sync); threads that do not exist or have
        exited are not waited for.
        """
        self.meets(site, mask, instruction)
        if is_lanes(membermask):
            active = LANES if mask is None else np.nonzero(mask)[0]
            if (membermask[active] != membermask[active[0]]).any():
                self.report(
                    "WARP_CONVERGENCE", site, f"{instruction} with a mask that differs among lanes"
                )
        named = ALL_LANES if membermask is None else one(membermask, mask) & ALL_LANES
        here = lane_bits(mask)
        absent = named & ~here & lane_bits(self.partial)
        if absent or here & ~named:
            which = f"{absent:#x} do not execute it" if absent else f"{here & ~named:#x} are not"
            self.report(
                "WARP_CONVERGENCE",
                site,
                f"{instruction} with the mask {named:#010x}: lanes {which}"
                + ("" if absent else " in its mask"),
            )
        return mask

    def elect(self, site: int, mask: Any) -> np.ndarray:
        """Return true in one lane, the lowest active one: the same for each mask."""
        self.members(site, mask, ALL_LANES, "elect.sync")
        return np.asarray(first_lane(mask) == LANES)

    def activemask(self, mask: Any) -> int:
        """Return the active lanes as bits."""
        return lane_bits(mask)

    # -- shuffles ---------------------------------------------------------------------------------

    def _shuffle(self, mask: Any, value: Any, source: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """Take each lane's value from its source; that of a lane which is not here is undefined."""
        values = as_lanes(value)
        if mask is not None:
            values = np.array(values)
            absent = np.ascontiguousarray(values[~mask])
            absent.view(np.uint8)[...] = 0xFF if values.dtype.kind != "b" else 0
            values[~mask] = absent
        return values[np.where(inside, source, LANES)]

    def shuffle(
        self, site: int, mask: Any, mode: str, membermask: Any, value: Any, offset: Any, width: Any
    ) -> np.ndarray:
        """Read another lane's value in segments of `width` lanes, as `__shfl_*_sync` do it."""
        control = 32 - int(np.max(width)) << 8 | (0 if mode == "up" else 31)
        return self.op_shfl_sync_p(site, mask, {"mode": mode}, value, offset, control, membermask)[
            0
        ]

    # -- votes ------------------------------------------------------------------------------------

    def vote(self, site: int, mask: Any, mode: str, membermask: Any, value: Any) -> int:
        """Return whether any or all lanes hold, or which (`ballot`); the same in all lanes."""
        mask = self.members(site, mask, membermask, "vote.sync")
        holds = as_lanes(value) != 0
        here = holds if mask is None else holds[mask]
        if mode == "ballot":
            return lane_bits(holds if mask is None else holds & mask)
        if mode == "uni":
            return int(here.all() or not here.any())
        return int(here.any() if mode == "any" else here.all())

    # -- meetings ---------------------------------------------------------------------------------

    def op_cuda_warp_sync(self, site: int, mask: Any) -> Wait:
        """Run `__syncwarp()`, which is `bar.warp.sync 0xffffffff`."""
        yield from self.op_bar_warp_sync(site, mask, {})

    def op_bar_warp_sync(self, site: int, mask: Any, mods: Any, membermask: Any = None) -> Wait:
        """Order the lanes of `membermask`.

        They run in lockstep, so that nothing waits but for lanes in the other side of a branch:
        "wait until all threads corresponding to membermask have executed a bar.warp.sync with the
        same membermask value" (PTX ISA 9.1, 9.7.13.2), not the same statement.
        """
        named = ALL_LANES if membermask is None else one(membermask, mask) & ALL_LANES
        here, existing = lane_bits(mask), lane_bits(self.partial)
        if self.split and named & existing & ~here and not here & ~named:
            name = f"bar.warp.sync {named:#010x}"
            _, first = yield from self.gather_lanes(site, mask, name, named, name, leaves=False)
            if not first:
                return
            here = named
        else:
            self.members(site, mask, membermask, "bar.warp.sync")
        self.meet(self.whole(named & here & existing), self.epoch)
        self.bump()

    def both(self, first: Any, second: Any) -> Any:
        """Run both sides of a branch; lanes of one warp go on independently.

        CUDA C++ Programming Guide, "Independent Thread Scheduling". The first side goes as far as
        it can, then the second; where both wait, each looks again after any change.
        """
        sides = [side for side in (first, second) if side is not None]
        before, self.split = self.split, self.split or len(sides) > 1
        self.others += len(sides) > 1
        while len(sides) > 1:
            progress, ended = self.machine.progress, len(sides)
            for side in list(sides):
                blocked = yield from self._until_blocked(side)
                if not blocked:
                    sides.remove(side)
                    self.others -= len(sides) == 1
            if len(sides) == ended and progress == self.machine.progress:
                self.spinning = progress
                self.watched.clear()  # words of one side
                yield self.machine.spinners
        for side in sides:
            yield from side
        self.split = before

    @staticmethod
    def _until_blocked(side: Any) -> Any:
        """Run one side until it waits for something; False if it has ended."""
        for thing in side:
            if thing is not None:
                return True
            yield None
        return False

    # -- lanes by number --------------------------------------------------------------------------

    def op_elect_sync(self, site: int, mask: Any, mods: Any, membermask: Any = None) -> Any:
        """Return one lane's number and a predicate."""
        chosen = self.elect(site, mask)
        return int(np.argmax(chosen)), chosen

    def op_activemask(self, site: int, mask: Any, mods: Any) -> int:
        """Return the active lanes as bits."""
        return self.activemask(mask)
