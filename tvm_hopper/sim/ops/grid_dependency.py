"""`griddepcontrol`: a launch that may begin before the one before it has ended; and `discard`.

PTX ISA 9.1, 9.7.13.13: `.wait` "causes the executing thread to wait until all prerequisite grids in
flight have completed and all the memory operations from the prerequisite grids are performed and
made visible to the current grid". Launches run one after another here: what a launch with TVM's tag
for programmatic dependent launch touches of an earlier one's tensors must are after a wait, and
where a thread block executes `.launch_dependents` before it waits, the next launch may begin while
those before this one still run. In any other launch both have no effect.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.memory import POISON
from tvm_hopper.sim.ops.bulk import active, lane_value

DISCARDED_BYTES = 128


class GridDependencyOps:
    """Mixin of `Warp`."""

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

    def op_discard(self, site: int, mask: Any, mods: Any, addr: Any) -> None:
        """Leave 128 bytes of global memory without a value (9.7.9.17).

        "Semantically, this behaves like a weak write of an unstable indeterminate value".
        """
        for lane in active(mask):
            region, offset = self.region_at(lane_value(addr, lane))
            if region is not None and region.shared:
                text = "discard: need an address of global memory"
                self.report("ILLEGAL_OPERAND", site, text)
                continue
            place = np.asarray([offset])
            if not self.inside(site, region, place, DISCARDED_BYTES, "discard writes"):
                continue
            if (region.base + offset) % DISCARDED_BYTES:
                text = f"offset {offset} of {region.name}: need {DISCARDED_BYTES}"
                self.report("MISALIGNED", site, text, buffer=region.name)
                continue
            region.begin_store()
            self.machine.progress += 1
            if region.shadow is not None:
                access = self.access(site, True, lanes=self.bit_of(int(lane)))
                access.discards = True
                self.check(region, place, DISCARDED_BYTES, access)
                region.shadow.discard(access, region.shadow.cells(place, DISCARDED_BYTES))
            if self.machine.values:
                region.data[offset : offset + DISCARDED_BYTES] = POISON
