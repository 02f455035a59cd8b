"""Copies through a tensor map: TMA loads, stores and reductions of boxes.

PTX ISA 9.1, 9.7.9.27 cp.async.bulk.tensor, cp.reduce.async.bulk.tensor. Once its elements are
known, it works as every bulk copy (`bulk.py`).
"""

from __future__ import annotations

from typing import Any

from tvm_hopper.sim.launch.im2col import Im2colMap
from tvm_hopper.sim.launch.tma import START_ALIGNMENT, BoundTensorMap
from tvm_hopper.sim.ops.bulk import BulkCopy, active, lane_value


class TensorCopyOps:
    """Mixin of `Warp`."""

    def op_cp_async_bulk_tensor_g2s(
        self,
        site: int,
        mask: Any,
        mods: Any,
        dst_mem: Any,
        tmap: Any,
        coords: Any,
        mbar: Any,
        cta_mask: Any = None,
        cache_policy: Any = None,
        im2col_info: Any = (),
    ) -> None:
        """Load a box (or a column of pixels) into one or, by multicast, several CTAs."""
        mode = mods.get("load_mode") or "tile"
        if mode not in ("tile", "im2col") or mods.get("cta_group"):
            self.machine.incomplete(f"cp.async.bulk.tensor {mods.get('load_mode')}", site)
            return
        info = im2col_info if isinstance(im2col_info, tuple) else (im2col_info,)
        coords = coords if isinstance(coords, tuple) else (coords,)
        for lane in active(mask):
            start = [lane_value(c, lane) for c in coords]
            more = [lane_value(offset, lane) for offset in info]
            bound = self._usable_map(site, lane, tmap, mode, start, more)
            if bound is None:
                continue
            moved = (start, more) if mode == "im2col" else (start,)
            watched = bound.region.shadow is not None or bound.region.outside is not None
            if self.machine.values or watched:
                offsets, inside = bound.select(*moved)
            else:
                offsets, inside = bound.ends(*moved), None
            target, barrier = lane_value(dst_mem, lane), lane_value(mbar, lane)
            masks = None if cta_mask is None else lane_value(cta_mask, lane)
            if target & 0x7F:
                self.report("MISALIGNED", site, f"TMA destination {target:#x}: need 128")
            landing = bound.landing(target & 0x3FF)
            copy = BulkCopy(
                *(site, int(lane), "TMA load", bound.region, offsets, landing),
                *(bound.dtype, inside, bound.fill()),
            )
            for op in self._load(copy, target, barrier, masks):
                self.reads_map(site, int(lane), bound, op)

    def _usable_map(
        self, site: int, lane: int, tmap: Any, mode: str, start: list[int], more: list[int]
    ) -> BoundTensorMap | None:
        """Return the tensor map that one lane's copy uses, if it can be used so."""
        bound: BoundTensorMap | None = self.tensor_map_at(site, lane, tmap)
        if bound is None:
            return None
        if bound.arg.interleave:
            self.machine.incomplete("tensor map with interleave", site)
            return None
        rank, problem = len(bound.arg.dims), ""
        if isinstance(bound, Im2colMap) != mode.startswith("im2col"):
            kind = "im2col" if isinstance(bound, Im2colMap) else "tiled"
            problem = f"a copy in mode {mode} with a tensor map in {kind} mode"
        elif len(start) != rank:
            problem = f"{len(start)} coordinates for a tensor map of rank {rank}"
        elif isinstance(bound, Im2colMap):
            problem = bound.trouble(start, more)
        if problem:
            self.report("ILLEGAL_OPERAND", site, problem)
            return None
        self._check_start(site, bound, start)
        return bound

    def _check_start(self, site: int, tmap: BoundTensorMap, start: list[int]) -> None:
        num_bytes = start[0] * tmap.itemsize
        if num_bytes % START_ALIGNMENT:
            text = f"TMA box from innermost coordinate {start[0]}, {num_bytes} bytes: need a "
            self.report("MISALIGNED", site, text + "multiple of 16")

    def op_cp_async_bulk_tensor_s2g(
        self,
        site: int,
        mask: Any,
        mods: Any,
        tmap: Any,
        coords: Any,
        src_mem: Any,
        cache_policy: Any = None,
    ) -> None:
        """Store a box through a tensor map; elements outside the tensor are not written."""
        reduce = mods.get("redop", "")
        mode = mods.get("load_mode") or "tile"
        if mode not in ("tile", "im2col_no_offs"):
            self.machine.incomplete(f"cp.async.bulk.tensor {mods.get('load_mode')}", site)
            return
        coords = coords if isinstance(coords, tuple) else (coords,)
        for lane in active(mask):
            start = [lane_value(c, lane) for c in coords]
            bound = self._usable_map(site, lane, tmap, mode, start, [])
            if bound is None:
                continue
            if min(start) < 0 and mode == "tile":
                self.report("OOB_ACCESS", site, f"TMA store at {start}", key=(site, "-"))
            offsets, inside = bound.select(start)
            source = lane_value(src_mem, lane)
            if source & 0x7F:
                self.report("MISALIGNED", site, f"TMA source {source:#x}: need 128")
            landing = bound.landing(source & 0x3FF)
            kind = f"TMA reduce ({reduce})" if reduce else "TMA store"
            copy = BulkCopy(
                *(site, int(lane), kind, bound.region, offsets, landing),
                *(bound.dtype, inside, 0, reduce),
            )
            self.reads_map(site, int(lane), bound, self._store(copy, source))
