"""`bar.red`: a named barrier at which the threads also vote (PTX ISA, 9.7.13.1)."""

from __future__ import annotations

from typing import Any

from tvm_hopper.sim.machine.lanes import as_lanes
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.ops.named import NamedBarrier


class BarrierVoteOps:
    """The votes of one warp at named barriers; a part of `Warp`, whose other methods it calls."""

    def vote_named(
        self, site: int, mask: Any, number: int, count: int | None, aligned: bool, value: Any
    ) -> Wait:
        """Meet at a named barrier; return in how many threads a predicate holds, and of how many.

        Threads that meet there by `bar.sync` or `bar.arrive` bring no vote: mixing the two in one
        generation has no defined outcome.
        """
        barrier: NamedBarrier = self.named(number)
        generation = barrier.generation
        votes = barrier.votes.setdefault(generation, {})
        holds = as_lanes(value) != 0
        here = holds if mask is None else holds[mask]
        true, size = votes.get(self, (0, 0))  # of other lanes of this warp
        votes[self] = (true + int(here.sum()), size + here.size)
        yield from self.sync_named(site, mask, number, count, aligned)
        barrier.votes.pop(generation - 2, None)
        met = {warp for warp, _ in barrier.previous}
        if barrier.generation == generation + 1 and met != votes.keys():
            self.machine.at(
                "NAMED_BAR_MISMATCH",
                self,
                site,
                f"{barrier.name}: bar.red meets bar.sync or bar.arrive in generation {generation}",
                buffer=barrier.name,
            )
        return sum(true for true, _ in votes.values()), sum(all_ for _, all_ in votes.values())

    def op_bar_red_popc(
        self, site: int, mask: Any, mods: Any, a: Any, c: Any, b: Any = None
    ) -> Wait:
        """Count the threads in which a predicate holds, or tell whether in all or any of them."""
        count = None if b is None else self.uniform(site, b, mask, "the count of a barrier")
        number = self.uniform(site, a, mask, "the number of a barrier")
        true, threads = yield from self.vote_named(
            site, mask, number, count, self._aligned(mods), c
        )
        if mods["op"] == "popc":
            return true
        return int(true == threads if mods["op"] == "and" else true > 0)

    op_bar_red_pred = op_bar_red_popc

    def vote_block(self, site: int, mask: Any, op: str, value: Any) -> Wait:
        """Run `__syncthreads_and` or `__syncthreads_or`: 1 or 0 in all threads."""
        true, threads = yield from self.vote_named(site, mask, 0, None, True, value)
        return int(true == threads if op == "and" else true > 0)
