"""Tensor maps in memory: `tensormap.replace`, the fences of their proxy, and copies that read them.

PTX ISA 9.1, 9.7.9.28 tensormap.replace ("a weak memory operation, on the entire 1024-bit opaque
tensor-map object"), 9.7.13.16 tensormap.cp_fenceproxy, 9.7.13.4 fence.proxy. A copy reads its map
through the tensormap proxy; a map that is a parameter of the kernel cannot change, and needs no
fence. Maps written before the kernel need an acquire too (CUDA Programming Guide, "Using TMA",
on maps in global memory).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.launch import tensor_map_object as maps
from tvm_hopper.sim.launch.im2col import bound_map
from tvm_hopper.sim.launch.tma import BoundTensorMap
from tvm_hopper.sim.machine.lanes import as_lanes, one
from tvm_hopper.sim.machine.machine import PendingOp
from tvm_hopper.sim.machine.memory import GLOBAL_SHIFT
from tvm_hopper.sim.ops.bulk import active, lane_value
from tvm_hopper.sim.ops.fences import narrower
from tvm_hopper.sim.options import no_values
from tvm_hopper.sim.races.clocks import Bundle
from tvm_hopper.sim.races.shadow import ALL_LANES, TENSORMAP, Reliance


class TensorMapOps:
    """One warp's operations on tensor maps; a part of `Warp`."""

    # -- a map that a copy uses -------------------------------------------------------------------

    def tensor_map_at(self, site: int, lane: int, tmap: Any) -> BoundTensorMap | None:
        """Return the tensor map of one lane's copy; None if there is none that it could use."""
        if isinstance(tmap, BoundTensorMap):
            return tmap
        machine, address = self.machine, lane_value(tmap, lane)
        no_values(machine, "a tensor map lies in memory")
        region, offset = self.region_at(address)
        if region is None or region.shared:
            text = "a tensor map in shared memory, or in none: need global memory, or a parameter"
            self.report("ILLEGAL_OPERAND", site, text)
            return None
        if not self._object_legal(site, region, offset, "reads"):
            return None
        raw = region.data[offset : offset + maps.NUM_BYTES]
        key = raw.tobytes()
        if key not in machine.maps_in_memory:
            machine.maps_in_memory[key] = self._decoded(site, raw.copy())
        found: BoundTensorMap | None = machine.maps_in_memory[key]
        if found is None:
            return None
        return bound_map(found.arg, found.region, address, region.is_parameter)

    def _object_legal(self, site: int, region: Any, offset: int, verb: str) -> bool:
        """Check that 128 bytes may be a tensor map, and are one."""
        place = np.asarray([offset])
        if not self.inside(site, region, place, maps.NUM_BYTES, f"a tensor map {verb}"):
            return False
        problem = ""
        if (region.base + offset) % maps.ALIGNMENT:
            rule, problem = "MISALIGNED", f"need {maps.ALIGNMENT}"
        elif not maps.is_map(region.data[offset : offset + maps.NUM_BYTES].copy()):
            rule, problem = "TENSOR_MAP", "what lies there is none, or was encoded by a driver"
        if problem:
            text = f"a tensor map at byte {offset} of {region.name}: {problem}"
            self.report(rule, site, text, buffer=region.name)
        return not problem

    def _decoded(self, site: int, raw: np.ndarray) -> BoundTensorMap | None:
        address = maps.address_of(raw)
        region, offset = self.region_at(address)
        if region is None or region.shared:
            text = f"a tensor map of address {address:#x}, which is no tensor's"
            self.report("TENSOR_MAP", site, text)
            return None
        arg = maps.decode(raw, region.name, offset)
        if arg.dtype in maps.ELEMENT_TYPES and arg.dtype.startswith(("f32", "tf32")):
            self.machine.incomplete(f"tensor maps of {arg.dtype}", site)
            return None
        if broken := maps.broken_rules(arg):
            text = f"tensor map of {region.name}: " + " and ".join(broken)
            self.report("TENSOR_MAP", site, text)
            return None
        return bound_map(arg, region)

    def reads_map(self, site: int, lane: int, tmap: BoundTensorMap, op: PendingOp | None) -> None:
        """Note that a copy reads its tensor map, through the tensormap proxy."""
        if op is None or tmap.is_parameter or self.machine.log is None:
            return
        lanes = self.bit_of(lane)
        bundle: Bundle = self.knows(lanes)
        region, offset = self.region_at(tmap.address)
        clocks = bundle.tensormaps
        clock = None if clocks is None else clocks.acquired.get(tmap.address)
        if clock is None:
            self.report(
                "TENSORMAP_PROXY",
                site,
                f"{op.kind} uses a tensor map in {region.name} without "
                "fence.proxy.tensormap::generic.acquire of it",
                buffer=region.name,
                missing="fence.proxy.tensormap::generic.acquire before this copy",
            )
            clock = bundle.generic
        access = self.access(site, False, TENSORMAP, op.read_event, op, lanes=lanes)
        place = np.asarray([offset])
        relies = Reliance(clock, lambda: bundle)
        self.check(region, place, maps.NUM_BYTES, access, relies)

    # -- changes ----------------------------------------------------------------------------------

    def op_tensormap_replace(
        self, site: int, mask: Any, mods: Any, addr: Any, new_val: Any, ord: Any = None
    ) -> None:
        """Change a field of a tensor map, in global memory or in this CTA's shared memory."""
        no_values(self.machine, "a tensor map is changed in memory")
        for lane in active(mask):
            region, offset = self.region_at(lane_value(addr, lane))
            if region is None or (region.shared and region.cta is not self.cta):
                text = "tensormap.replace: need global memory, or shared memory of its own CTA"
                self.report("ILLEGAL_OPERAND", site, text)
                continue
            if not self._object_legal(site, region, offset, "writes"):
                continue
            self._touch_object(site, region, offset, self.bit_of(int(lane)), writes=True)
            raw = region.data[offset : offset + maps.NUM_BYTES]
            if not maps.is_tiled(raw):
                text = "tensormap.replace.tile of a tensor map in im2col mode"
                self.report("ILLEGAL_OPERAND", site, text)
                continue
            position = None if ord is None else lane_value(ord, lane)
            changed = raw.copy()
            maps.replace(changed, mods["field"], position, lane_value(new_val, lane))
            raw[:] = changed

    def _touch_object(
        self, site: int, region: Any, offset: int, lanes: int, writes: bool, reads: bool = True
    ) -> None:
        """Record generic accesses of the 128 bytes."""
        place = np.asarray([offset])
        self.machine.progress += writes
        if writes:
            region.begin_store()
        if region.shadow is None:
            return
        for is_write, wanted in ((False, reads), (True, writes)):
            if wanted:
                access = self.access(site, is_write, lanes=lanes)
                self.check(region, place, maps.NUM_BYTES, access)

    # -- the tensormap proxy ----------------------------------------------------------------------

    def op_tensormap_cp_fenceproxy(
        self, site: int, mask: Any, mods: Any, dst_mem: Any, src_mem: Any
    ) -> None:
        """Copy a tensor map from shared to global memory, then release it to the proxy."""
        no_values(self.machine, "a tensor map is copied in memory")
        self._require_full(site, mask, "tensormap.cp_fenceproxy.sync.aligned", exists=True)
        operand = "an address of tensormap.cp_fenceproxy"
        src, start = self.region_at(self.uniform(site, src_mem, mask, operand))
        dst, target = self.region_at(self.uniform(site, dst_mem, mask, operand))
        if src is None or src.cta is not self.cta or dst is None or dst.shared:
            text = "tensormap.cp_fenceproxy: need shared memory of its own CTA, then global memory"
            self.report("ILLEGAL_OPERAND", site, text)
            return
        if not self._object_legal(site, src, start, "reads"):
            return
        place = np.asarray([target])
        if not self.inside(site, dst, place, maps.NUM_BYTES, "a tensor map writes"):
            return
        if (dst.base + target) % maps.ALIGNMENT:
            text = f"offset {target} of {dst.name}: need {maps.ALIGNMENT}"
            self.report("MISALIGNED", site, text, buffer=dst.name)
            return
        self._touch_object(site, src, start, ALL_LANES, writes=False)
        self._touch_object(site, dst, target, ALL_LANES, writes=True, reads=False)
        raw = src.data[start : start + maps.NUM_BYTES]
        dst.data[target : target + maps.NUM_BYTES] = raw
        self._release_maps(ALL_LANES, mods["scope"])

    def op_fence_proxy_tensormap_release(self, site: int, mask: Any, mods: Any) -> None:
        """Release earlier writes to the tensormap proxy, for reads after an acquire."""
        self._release_maps(self.lanes_of(mask), mods["scope"])

    def _release_maps(self, lanes: int, scope: str) -> None:
        for part in self.parts_of(lanes):
            known = self.knows(part).generic.copy()
            if part != ALL_LANES:
                self.lane_order.limit(known, part, self.machine)
            self.bundle_of(part).of_maps().release(self.cta, scope, known)
            # A relaxed write after the fence publishes this, and the effects of earlier fences.
            self.fenced_by(part, scope).of_maps().release(self.cta, scope, known)
        self.bump()

    def op_fence_proxy_tensormap_acquire(self, site: int, mask: Any, mods: Any, addr: Any) -> None:
        """Let copies after this read a tensor map as it was released."""
        scope, lanes = mods["scope"], self.lanes_of(mask)
        if one(addr, mask) >> GLOBAL_SHIFT == 0:
            text = "fence.proxy.tensormap::generic.acquire: need an address of global memory"
            self.report("ILLEGAL_OPERAND", site, text)
            return
        for (part, fence), seen in self.pending.items():
            if part & lanes and seen.tensormaps is not None and fence == narrower(scope, "gpu"):
                clocks = self.bundle_of(self.whole(part & lanes))
                clocks.of_maps().join(seen.tensormaps)
        places = as_lanes(addr).astype(np.int64)
        for part in self.parts_of(lanes):
            here = [lane for lane in active(mask) if part >> int(lane) & 1]
            known = self.knows(part).tensormaps
            clocks = self.bundle_of(part).of_maps()
            if known is not None and clocks is not known:
                clocks.join(known)
            for address in dict.fromkeys(places[here].tolist()):
                clocks.acquire(address, self.cta, scope, self.machine.cluster_warps)
