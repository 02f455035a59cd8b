"""Device functions that TVM prints: reductions over a warp or a block, sleep, traps."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES, as_lanes, mand
from tvm_hopper.sim.ops.mbarrier import Wait
from tvm_hopper.sim.races.shadow import ALL_LANES

# Operation on `val` and `shuffled`: CUDA's max and min of floats drop a NaN.
_COMBINE = {"sum": np.add, "max": np.fmax, "min": np.fmin}
_IDENTITY = {"sum": 0.0, "max": -np.inf, "min": np.inf}


class CudaHelperOps:
    """Mixin of `Warp`."""

    def warp_reduce(
        self, site: int, mask: Any, value: Any, op: str, width: int, dtype: np.dtype
    ) -> np.ndarray:
        """Run `tvm_builtin_cuda_warp_reduce`: butterfly shuffles within `width` lanes."""
        values = np.broadcast_to(as_lanes(value), (32,)).astype(dtype)
        step = width >> 1
        while step:
            other = self.shuffle(site, mask, "bfly", ALL_LANES, values, step, 32)
            with np.errstate(all="ignore"):
                values = _COMBINE[op](values, other).astype(dtype)
            step >>= 1
        return values

    def cta_reduce(
        self,
        site: int,
        mask: Any,
        value: Any,
        op: str,
        num_warps: int,
        scratch: Any,
        dtype: np.dtype,
    ) -> Wait:
        """Run `tvm_builtin_cuda_cta_reduce`.

        The first lane of each warp stores its warp's value to the scratch memory, the first warp
        reduces these after `__syncthreads` and stores the result to its first element, and all
        load that after another one. Nothing is between that load and a next call's stores.
        """
        values = self.warp_reduce(site, mask, value, op, 32, dtype)
        places, size = as_lanes(scratch).astype(np.int64), dtype.itemsize
        first = mand(mask, LANES == 0)
        if first is not False:
            self.store(site, first, places + self.number * size, 0, values, (dtype, 1, 1))
        yield from self.sync_named(site, mask, 0, None, True)
        if self.number == 0:
            used = num_warps > LANES
            inner = mand(mask, used)
            partial = np.full(32, _IDENTITY[op], np.float64).astype(dtype)
            if inner is not False:
                loaded = self.load(site, inner, places + LANES * size, 0, (dtype, 1, 1))
                partial = np.where(used, loaded, partial).astype(dtype)
            partial = self.warp_reduce(site, mask, partial, op, 32, dtype)
            if first is not False:
                self.store(site, first, places, 0, partial, (dtype, 1, 1))
        yield from self.sync_named(site, mask, 0, None, True)
        return self.load(site, mask, scratch, 0, (dtype, 1, 1))

    def op_cuda_nano_sleep(self, site: int, mask: Any, time: Any) -> Wait:
        """Let others run; how long is no matter of correctness."""
        yield None

    def op_cuda_trap_when_assert_failed(self, site: int, mask: Any, holds: Any) -> None:
        """End the kernel with an error in the lanes where a condition does not hold."""
        failed = mand(mask, as_lanes(holds) == 0)
        if failed is not False:
            count = 32 if failed is None else int(failed.sum())
            self.report("TRAP", site, f"trap is reached by {count} threads")
