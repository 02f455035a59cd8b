"""stmatrix and ldmatrix: 8x8 matrices of 16-bit elements between registers and shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.layouts.matrices import matrices_of, registers_of
from tvm_hopper.sim.machine.lanes import as_lanes


class MatrixOps:
    """Matrix loads and stores of one warp."""

    def _rows(self, site: int, p: Any, number: int) -> tuple[Any, np.ndarray] | None:
        """Return region and byte offsets of the 8*number row addresses."""
        addresses = as_lanes(p).astype(np.int64)[: 8 * number]
        region, first = self.region_at(addresses[0])
        offsets = addresses - (addresses[0] - first)
        if region is None or not region.shared:
            self.report("OOB_ACCESS", site, "matrix row outside of shared memory")
            return None
        if not self.inside(site, region, offsets, 16, "matrix rows in"):
            return None
        if (offsets % 16).any():
            self.report("MISALIGNED", site, "matrix row address is no multiple of 16")
            return None
        if region.live[int(offsets.min()) : int(offsets.max()) + 16].any():
            self._live_object(site, region, offsets, 16)
        return region, offsets

    def op_stmatrix(self, site: int, mask: Any, mods: Any, p: Any, r: Any) -> None:
        """Store 1, 2 or 4 matrices; lane l of matrix m gives the address of row l of matrix m."""
        self._require_full(site, mask, "stmatrix", exists=True)
        values = r if isinstance(r, tuple) else (r,)
        rows = self._rows(site, p, len(values))
        if rows is None:
            return
        region, offsets = rows
        self.machine.progress += 1
        if region.shadow is not None:
            self.check(region, offsets, 16, self.access(site, True), together=True)
        if not self.machine.values:
            return
        words = np.stack([np.broadcast_to(as_lanes(value), (32,)) for value in values])
        cells = region.view(np.dtype(np.uint16))
        places = offsets.reshape(-1, 8, 1) // 2 + np.arange(8)
        cells[places] = matrices_of(words.astype(np.uint32), bool(mods.get("trans")))

    def op_ldmatrix(self, site: int, mask: Any, mods: Any, p: Any) -> Any:
        """Load 1, 2 or 4 matrices; each lane gets two neighbours of a row per matrix."""
        self._require_full(site, mask, "ldmatrix", exists=True)
        number = int(mods["num"][1:])
        results = np.zeros((number, 32), np.uint32)
        rows = self._rows(site, p, number)
        if rows is not None:
            region, offsets = rows
            if region.shadow is not None:
                self.check(region, offsets, 16, self.access(site, False), together=True)
            if self.machine.values:
                cells = region.view(np.dtype(np.uint16))
                matrices = cells[offsets.reshape(-1, 8, 1) // 2 + np.arange(8)]
                results = registers_of(matrices, bool(mods.get("trans")))
        return results[0] if number == 1 else tuple(results)
