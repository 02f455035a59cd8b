"""TMA boxes of every swizzle: each byte of shared memory, and of the tensor, after a copy."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.launch.tma import BoundTensorMap, TensorMapArg, landing_offsets
from tvm_hopper.sim.machine.memory import Region

from .descriptors import SPANS

IMAGE_BYTES = 8 * 1024
UNTOUCHED = 0xCD
TYPES = {"uint8": 0, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}  # driver's codes
ROWS, WIDTH_BYTES = 24, 512  # the tensor, in each of its planes
PLANES = 3

SOURCE = """
struct __align__(64) Map { unsigned long long word[16]; };
#define SMEM(p) (unsigned)__cvta_generic_to_shared(p)
#define FILL for (int i = threadIdx.x; i < 512; i += 128) ((uint4*)smem)[i] = image[i]; \\
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncthreads();
#define LOAD(NAME, RANK, COORDS) \\
extern "C" __global__ void NAME(const __grid_constant__ Map map, const uint4* image, int place, \\
        int bytes, int x, int y, int z, uint4* out) { \\
    extern __shared__ __align__(1024) char smem[]; \\
    __shared__ __align__(8) unsigned long long bar; \\
    if (threadIdx.x == 0) \\
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(SMEM(&bar)) : "memory"); \\
    FILL \\
    if (threadIdx.x == 0) { \\
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" \\
            :: "r"(SMEM(&bar)), "r"(bytes) : "memory"); \\
        asm volatile("cp.async.bulk.tensor." RANK ".shared::cluster.global" \\
            ".mbarrier::complete_tx::bytes [%0], [%1, " COORDS "], [%5];" \\
            :: "r"(SMEM(smem) + place), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(SMEM(&bar)) \\
            : "memory"); \\
    } \\
    unsigned done = 0; \\
    for (int tries = 0; !done && tries < 1000000; ++tries) \\
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0;" \\
            " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(SMEM(&bar)) : "memory"); \\
    __syncthreads(); \\
    if (done) \\
        for (int i = threadIdx.x; i < 512; i += 128) out[i] = ((uint4*)smem)[i]; \\
}
#define STORE(NAME, RANK, COORDS) \\
extern "C" __global__ void NAME(const __grid_constant__ Map map, const uint4* image, int place, \\
        int bytes, int x, int y, int z, uint4* out) { \\
    extern __shared__ __align__(1024) char smem[]; \\
    FILL \\
    if (threadIdx.x == 0) { \\
        asm volatile("cp.async.bulk.tensor." RANK ".global.shared::cta.bulk_group" \\
            " [%1, " COORDS "], [%0];" \\
            :: "r"(SMEM(smem) + place), "l"(&map), "r"(x), "r"(y), "r"(z) : "memory"); \\
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory"); \\
    } \\
}
LOAD(load_2, "2d", "{%2, %3}")
LOAD(load_3, "3d", "{%2, %3, %4}")
STORE(store_2, "2d", "{%2, %3}")
STORE(store_3, "3d", "{%2, %3, %4}")
"""


@dataclass(frozen=True)
class Copy:
    """One box: `inner` bytes of it lie side by side, `place` is its offset in shared memory."""

    dtype: str
    span: int
    inner: int
    rank: int
    place: int
    start: tuple[int, ...]

    @property
    def map(self) -> TensorMapArg:
        """The tensor map, innermost dimension first."""
        size = np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype).itemsize
        dims = (WIDTH_BYTES // size, ROWS, PLANES)[: self.rank]
        strides = (WIDTH_BYTES, WIDTH_BYTES * ROWS)[: self.rank - 1]
        box = (self.inner // size, *((16,) if self.rank == 2 else (8, 2)))
        return TensorMapArg(
            "X", self.dtype, dims, strides, box, (1,) * self.rank, 0, SPANS.index(self.span)
        )


def boxes() -> list[Copy]:
    """Return every copy that is tried."""
    found = []
    for dtype, span in itertools.product(TYPES, SPANS):
        size = np.dtype("uint16" if dtype == "bfloat16" else dtype).itemsize
        for inner in (16, 32, 64, 128, 256):
            if inner // size > 256 or (span and inner > span):
                continue
            for place in range(0, 1024, 128):
                starts = [(0, 0), (16 // size * 3, 5), (WIDTH_BYTES // size - 16 // size, 14)]
                found += [Copy(dtype, span, inner, 2, place, start) for start in starts]
            for place in (0, 384):
                found.append(Copy(dtype, span, inner, 3, place, (16 // size, 3, 1)))
                found.append(Copy(dtype, span, inner, 3, place, (0, -2, 2)))
    return found


def expected(copy: Copy, tensor: np.ndarray, image: np.ndarray, load: bool) -> np.ndarray:
    """Return shared memory after a load, or the tensor after a store, as the simulator has it."""
    bound = BoundTensorMap(copy.map, Region("X", tensor, 0, None, True))
    sources, inside = bound.select(copy.start)
    places = landing_offsets(bound.num_bytes, bound.itemsize, copy.span, copy.place & 0x3FF)
    places = places * bound.itemsize + copy.place
    valid = np.ones(len(sources), bool) if inside is None else inside
    out = (image if load else tensor).copy()
    for byte in range(bound.itemsize):
        if load:
            out[places + byte] = np.where(valid, tensor[np.where(valid, sources, 0) + byte], 0)
        else:
            out[sources[valid] + byte] = image[places[valid] + byte]
    return out


def on_gpu(
    gpu: Any, module: Any, copy: Copy, load: bool, tensor: np.ndarray, image: np.ndarray
) -> Any:
    """Run one copy; return shared memory after a load, the tensor after a store."""
    import ctypes

    from cuda.bindings import driver

    from .device import call

    described = copy.map
    pointers = [gpu.upload(x) for x in (tensor, image, np.full_like(image, UNTOUCHED))]
    u32, u64 = driver.cuuint32_t, driver.cuuint64_t
    encoded = call(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType(TYPES[copy.dtype]),
            copy.rank,
            pointers[0],
            [u64(x) for x in described.dims],
            [u64(x) for x in described.strides_bytes],
            [u32(x) for x in described.box],
            [u32(x) for x in described.element_strides],
            driver.CUtensorMapInterleave(0),
            driver.CUtensorMapSwizzle(described.swizzle),
            driver.CUtensorMapL2promotion(0),
            driver.CUtensorMapFloatOOBfill(0),
        )
    )
    start = (*copy.start, 0)[:3]
    values = (encoded, int(pointers[1]), copy.place, copy.inner * 16, *start, int(pointers[2]))
    number = ctypes.c_int
    types = (None, ctypes.c_void_p, number, number, number, number, number, ctypes.c_void_p)
    name = f"{'load' if load else 'store'}_{copy.rank}"
    gpu.launch(module, name, 1, IMAGE_BYTES, values, types)
    got = gpu.fetch(pointers[2], image) if load else gpu.fetch(pointers[0], tensor)
    for pointer in pointers:
        call(driver.cuMemFree(pointer))
    return got


def copy_all(run: Any, load: bool, seed: int = 0) -> list[dict[str, Any]]:
    """Try every box; return a row a type and swizzle.

    Parameters
    ----------
    run : callable
        (copy, load, tensor, image) -> bytes of shared memory (load) or of the tensor (store).
    """
    rng = np.random.default_rng(seed)
    tensor = rng.integers(0, 256, WIDTH_BYTES * ROWS * PLANES).astype(np.uint8)
    image = np.full(IMAGE_BYTES, UNTOUCHED, np.uint8)
    if not load:
        image = rng.integers(0, 256, IMAGE_BYTES).astype(np.uint8)
    rows: dict[tuple[str, int, int], dict[str, Any]] = {}
    for copy in boxes():
        row = rows.setdefault(
            (copy.dtype, copy.span, copy.inner),
            {
                "part": "TMA loads" if load else "TMA stores",
                "kind": "box",
                "type": copy.dtype,
                "span": copy.span,
                "inner": copy.inner,
                "tried": 0,
                "as decoded": 0,
            },
        )
        got = run(copy, load, tensor, image)
        row["tried"] += 1
        row["as decoded"] += int(np.array_equal(got, expected(copy, tensor, image, load)))
    return list(rows.values())
