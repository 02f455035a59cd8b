"""stmatrix and ldmatrix: 8x8 matrices of 16-bit elements between registers and shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import as_lanes


class MatrixOps:
    """Matrix loads and stores of one warp."""

    def _rows(self, site: int, p: Any, number: int) -> tuple[Any, np.ndarray] | None:
        """Return region and byte offsets of the 8*number row addresses."""
        addresses = as_lanes(p).astype(np.int64)[: 8 * number]
        region, first = self.region_at(addresses[0])
        offsets = addresses - (addresses[0] - first)
        machine = self.machine
        if region is None or offsets.min() < 0 or offsets.max() + 16 > region.size:
            machine.at("OOB_ACCESS", self, site, "matrix row outside of shared memory")
            return None
        if (offsets % 16).any():
            machine.at("MISALIGNED", self, site, "matrix row address is no multiple of 16")
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
        cells = region.view(np.dtype(np.uint16))
        for number, value in enumerate(values):
            pairs = np.ascontiguousarray(as_lanes(value), np.uint32).view(np.uint16).reshape(8, 8)
            if mods.get("trans"):
                pairs = pairs.T
            starts = offsets[8 * number : 8 * number + 8] // 2
            cells[starts[:, None] + np.arange(8)] = pairs

    def op_ldmatrix(self, site: int, mask: Any, mods: Any, p: Any) -> Any:
        """Load 1, 2 or 4 matrices; each lane gets two neighbours of a row per matrix."""
        self._require_full(site, mask, "ldmatrix", exists=True)
        number = {"x1": 1, "x2": 2, "x4": 4}[mods["num"]]
        rows = self._rows(site, p, number)
        if rows is None:
            empty = np.zeros(32, np.uint32)
            return empty if number == 1 else (empty,) * number
        region, offsets = rows
        if region.shadow is not None:
            self.check(region, offsets, 16, self.access(site, False), together=True)
        if not self.machine.values:
            empty = np.zeros(32, np.uint32)
            return empty if number == 1 else (empty,) * number
        cells = region.view(np.dtype(np.uint16))
        results = []
        for matrix in range(number):
            starts = offsets[8 * matrix : 8 * matrix + 8] // 2
            values = cells[starts[:, None] + np.arange(8)]
            if mods.get("trans"):
                values = values.T
            results.append(np.ascontiguousarray(values).reshape(32, 2).view(np.uint32).ravel())
        return results[0] if number == 1 else tuple(results)
