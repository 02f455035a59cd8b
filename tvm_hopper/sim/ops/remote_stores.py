"""Stores and reductions of threads that land in the cluster later: `st.async`, `red.async`.

PTX ISA 9.1, 9.7.9.12 st.async, 9.7.13.8 red.async: both are "performed in the generic proxy"; the
store is weak, the reduction relaxed. Upon completion a complete-tx of the bytes is performed on the
mbarrier, with release semantics at cluster scope. So nothing orders such a write with later steps
of the issuing thread; a thread that waited on the mbarrier knows of it as of a generic write.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import as_lanes
from tvm_hopper.sim.machine.load_store import overlapping
from tvm_hopper.sim.machine.machine import PendingOp
from tvm_hopper.sim.machine.memory import POISON, Region, global_number, shared_offset, shared_rank
from tvm_hopper.sim.ops.bulk import active, in_pieces
from tvm_hopper.sim.ops.reductions import reduced
from tvm_hopper.sim.races.shadow import GENERIC


class RemoteStoreOps:
    """The asynchronous stores of one warp; a part of `Warp`."""

    def op_st_async(self, site: int, mask: Any, mods: Any, addr: Any, b: Any, mbar: Any) -> None:
        """Store an element, or a vector, and complete its bytes on an mbarrier next to it."""
        self._send(site, mask, mods, addr, b if isinstance(b, tuple) else (b,), mbar)

    def op_red_async(
        self, site: int, mask: Any, mods: Any, addr: Any, value: Any, mbar: Any
    ) -> None:
        """Reduce an element of another CTA's, and complete its bytes on an mbarrier there."""
        self._send(site, mask, mods, addr, (value,), mbar)

    def _send(
        self, site: int, mask: Any, mods: Any, addr: Any, values: tuple[Any, ...], mbar: Any
    ) -> None:
        kind, lanes = self._type(mods), active(mask)
        places, barriers = (as_lanes(a).astype(np.int64)[lanes] for a in (addr, mbar))
        words = np.stack([np.broadcast_to(as_lanes(v), (32,)).astype(kind) for v in values], 1)
        if not self._addresses_legal(site, places, barriers, bool(mods.get("op"))):
            return
        ranks = shared_rank(places)
        for barrier, rank in dict.fromkeys(zip(barriers.tolist(), ranks.tolist(), strict=True)):
            here = (barriers == barrier) & (ranks == rank)
            self._send_together(
                site, lanes[here], places[here], words[lanes[here]], barrier, mods.get("op", "")
            )

    def _addresses_legal(
        self, site: int, places: np.ndarray, barriers: np.ndarray, reduces: bool
    ) -> bool:
        """Check that destination and mbarrier lie in one CTA that PTX allows."""
        name = "red.async" if reduces else "st.async"
        problem = ""
        if global_number(places).any() or global_number(barriers).any():
            problem = "an address that is not of shared memory"
        elif len(self.cta.cluster) == 1:
            problem = "a cluster of one CTA"
        elif (shared_rank(places) != shared_rank(barriers)).any():
            problem = "a destination and an mbarrier in different CTAs"
        elif reduces and (shared_rank(places) == self.cta.rank).any():
            problem = "a destination in the CTA that executes it"
        if problem:
            where = "another CTA" if reduces else "one CTA, of several"
            need = f"need both in {where} of the cluster"
            self.report("ILLEGAL_OPERAND", site, f"{name} with {problem}: {need}")
        return not problem

    def _send_together(
        self,
        site: int,
        lanes: np.ndarray,
        places: np.ndarray,
        words: np.ndarray,
        barrier_address: int,
        reduce: str,
    ) -> None:
        """Send the data that some lanes store to one CTA and complete on one mbarrier."""
        machine, bits = self.machine, self.bits_of(lanes)
        dst, _ = self.region_at(int(places[0]))
        barrier = self.barrier_at(site, barrier_address, bits)
        if dst is None or barrier is None:  # already reported
            return
        offsets, size = shared_offset(places), words[0].nbytes
        if (offsets % size).any():
            text = f"offset {int(offsets[0])} of {dst.name}: need {size}"
            self.report("MISALIGNED", site, text, buffer=dst.name)
            return
        if not self.inside(site, dst, offsets, size, "writes"):
            return
        if dst.live[offsets[:, None] + np.arange(size)].any():
            self._live_object(site, dst, offsets, size)
        if not reduce and len(offsets) > 1 and overlapping(offsets, size):
            self.check_one_place(site, offsets, words)
        op = PendingOp("red.async" if reduce else "st.async", self, site)
        if self.lane_waits:
            self.lanes_came(bits, barrier)
        self.completes_on(op, barrier, words.nbytes)
        if machine.log is not None:
            access = self.access(
                site, True, GENERIC, op.write_event, op, rmw=bool(reduce), lanes=bits
            )
            self.check(dst, offsets, size, access)
        if machine.mode != "eager" and machine.values and not reduce:
            dst.data[offsets[:, None] + np.arange(size)] = POISON
        self._send_steps(op, dst, offsets, words, reduce)
        machine.submit(op)

    def _send_steps(
        self, op: PendingOp, dst: Region, offsets: np.ndarray, words: np.ndarray, reduce: str
    ) -> None:
        """Let the elements land, some lanes after others."""
        machine, barrier, count = self.machine, op.barrier, words.shape[1]

        def write(part: slice, last: bool) -> None:
            if machine.values:
                for offset, word in zip(offsets[part], words[part], strict=True):
                    at = np.asarray([offset])
                    if reduce:
                        word = reduced(reduce, self.gather(dst, at, words.dtype, count)[0], word)
                    self.scatter(dst, at, word[None], words.dtype, count)
            barrier.deliver(op, words[part].nbytes, last, generic=True)
            op.warp.settle(barrier)

        parts = in_pieces(len(offsets), min(machine.chunks, len(offsets)))
        op.steps.extend(partial(write, part, part is parts[-1]) for part in parts)
