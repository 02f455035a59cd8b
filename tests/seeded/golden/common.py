"""What the golden kernels share: tile sizes, PTX names, one kernel's record, and inlined pieces.

Every kernel is written as the final form that the lowering produces: one `uint8` dynamic shared
allocation with typed views over all of it, mbarriers as `uint64` in it, a producer warp group and
two consumer warp groups.  The tile is small so that a simulated CTA takes well under a second.
"""

from dataclasses import dataclass, field

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from tests.sim import ptx

TILE_M, TILE_N, TILE_K = 128, 64, 64
NUM_CONSUMERS = 2
NUM_THREADS = 128 * (1 + NUM_CONSUMERS)
A_ELEMENTS = TILE_M * TILE_K  # one stage of A, fp16
B_ELEMENTS = TILE_N * TILE_K
STAGE_BYTES = 2 * (A_ELEMENTS + B_ELEMENTS)
NUM_ACCUMULATORS = TILE_N // 2  # 64 rows x TILE_N columns over 128 threads
SWIZZLE_128B_MAP = 3  # CU_TENSOR_MAP_SWIZZLE_128B
SWIZZLE_64B_MAP = 2
MMA_SS = f"wgmma.mma_async.sync.aligned.m64n{TILE_N}k16.f32.f16.f16"
LOAD_2D = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
LOAD_2D_MULTICAST = LOAD_2D + ".multicast::cluster"
STORE_2D = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
STORE_1D = "cp.async.bulk.global.shared::cta.bulk_group"
REDUCE_1D = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"
LOAD_1D = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
STMATRIX = "stmatrix.sync.aligned.m8n8.x4.shared.b16"
LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
ENCODE = "runtime.cuTensorMapEncodeTiled"


@dataclass(frozen=True)
class Kernel:
    """One built kernel with inputs and the outputs that a right kernel gives.

    `inputs` holds every tensor by parameter name, outputs included when they have a defined value
    at entry (zero for a reduction); `expected` holds what must come out, in float64.  `against` is
    the plain program of the same parameters, for `verify(func, against=...)`.  `tolerance` is the
    relative error that its roundings may add up to; 0: every operation is exact.  `arch` is what
    it is built for.
    """

    func: PrimFunc
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray] = field(default_factory=dict)
    grid: int = 1
    against: PrimFunc | None = None
    tolerance: float = 0.0
    arch: str = "sm_90a"


@dataclass(frozen=True)
class Ring:
    """Where the ring of `stages` slots and its barriers stand in dynamic shared memory."""

    stages: int
    extra_bytes: int = 0  # between the ring and the barriers: staging tiles
    extra_barriers: int = 0
    barriers_at: int | None = None  # a wrong place, for the mutation that overlaps them

    @property
    def b_start(self) -> int:
        """First element of B, in fp16 elements."""
        return self.stages * A_ELEMENTS

    @property
    def staging(self) -> int:
        """First byte of the staging area."""
        return self.stages * STAGE_BYTES

    @property
    def full(self) -> int:
        """Index of full[0] in a uint64 view."""
        start = self.staging + self.extra_bytes if self.barriers_at is None else self.barriers_at
        return start // 8

    @property
    def empty(self) -> int:
        """Index of empty[0] in a uint64 view."""
        return self.full + self.stages

    @property
    def extra(self) -> int:
        """Index of the first barrier that is not of the ring."""
        return self.empty + self.stages

    @property
    def num_bytes(self) -> int:
        """Size of the allocation."""
        used = self.staging + self.extra_bytes + 8 * (2 * self.stages + self.extra_barriers)
        return (used + 127) // 128 * 128


def operands(m: int, n: int, k: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw integer-valued fp16 A (m, k) and B (n, k): products and sums are exact in fp32."""
    rng = np.random.default_rng(seed)
    return {
        "A": rng.integers(-2, 3, (m, k)).astype("float16"),
        "B": rng.integers(-2, 3, (n, k)).astype("float16"),
    }


def product(inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return A @ B.T in float64."""
    return inputs["A"].astype("float64") @ inputs["B"].astype("float64").T


def plain_product(m: int, n: int, k: int, out: str = "float32") -> PrimFunc:
    """Return A @ B.T as a plain program, summed in fp32."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((m, k), "float16"),
        B: T.Buffer((n, k), "float16"),
        C: T.Buffer((m, n), out),
    ):
        total = T.alloc_buffer((m, n), "float32")
        for i, j, p in T.grid(m, n, k):
            with T.sblock("total"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, p])
                with T.init():
                    total[vi, vj] = T.float32(0)
                total[vi, vj] += T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vj, vk])
        for i, j in T.grid(m, n):
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = T.Cast(out, total[vi, vj])

    return main


@T.inline
def init_ring(full, empty, ring, full_count, empty_count):
    for s in T.serial(ring.stages):
        ptx.init_mbarrier(full[ring.full + s], full_count)
        ptx.init_mbarrier(empty[ring.empty + s], empty_count)


@T.inline
def load_stage(sA, sB, full, empty, a_map, b_map, ring, it, k, row, col):
    """Fill slot `it % stages` with the tiles at K step `k`; `it` counts over the whole kernel."""
    ptx.wait(empty[ring.empty + it % ring.stages], ((it // ring.stages) % 2) ^ 1)
    ptx.expect_bytes(full[ring.full + it % ring.stages], STAGE_BYTES)
    T.ptx[LOAD_2D](
        T.address_of(sA[(it % ring.stages) * A_ELEMENTS]),
        T.address_of(a_map),
        k * TILE_K,
        row,
        T.address_of(full[ring.full + it % ring.stages]),
    )
    T.ptx[LOAD_2D](
        T.address_of(sB[ring.b_start + (it % ring.stages) * B_ELEMENTS]),
        T.address_of(b_map),
        k * TILE_K,
        col,
        T.address_of(full[ring.full + it % ring.stages]),
    )


@T.inline
def multiply_stage(sA, sB, acc, desc, ring, it, group, k):
    """Issue and commit the multiply-adds of slot `it % stages`; the first K step overwrites acc."""
    T.ptx.wgmma.fence.sync.aligned()
    T.cuda.wgmma.encode_matrix_descriptor(
        T.address_of(desc[0]),
        T.address_of(sA[(it % ring.stages) * A_ELEMENTS + group * 64 * TILE_K]),
        1,
        64,
        3,
    )
    T.cuda.wgmma.encode_matrix_descriptor(
        T.address_of(desc[1]),
        T.address_of(sB[ring.b_start + (it % ring.stages) * B_ELEMENTS]),
        1,
        64,
        3,
    )
    for kk in T.unroll(TILE_K // 16):
        T.ptx[MMA_SS](
            *[acc[i] for i in range(NUM_ACCUMULATORS)],
            desc[0] + T.uint64(kk * 2),
            desc[1] + T.uint64(kk * 2),
            (k > 0) if kk == 0 else T.bool(True),
            1,
            1,
            0,
            0,
        )
    T.ptx.wgmma.commit_group.sync.aligned()


@T.inline
def consume_tile(sA, sB, full, empty, acc, desc, ring, first, trips, group, lane):
    """Multiply `trips` slots beginning with ring position `first`, one group left in flight."""
    for k in T.serial(trips):
        ptx.wait(full[ring.full + (first + k) % ring.stages], ((first + k) // ring.stages) % 2)
        multiply_stage(sA, sB, acc, desc, ring, first + k, group, k)
        T.ptx.wgmma.wait_group.sync.aligned(1)
        if k > 0:
            if lane == 0:
                ptx.arrive(empty[ring.empty + (first + k + ring.stages - 1) % ring.stages])
    T.ptx.wgmma.wait_group.sync.aligned(0)
    if lane == 0:
        ptx.arrive(empty[ring.empty + (first + trips - 1) % ring.stages])


@T.inline
def store_fragment(C, acc, row, col, lane):
    """Write a 64 x TILE_N fragment with plain stores, two neighbours at a time."""
    for i in T.serial(NUM_ACCUMULATORS // 2):
        for v in T.vectorized(2):
            C[
                row + lane // 32 * 16 + i % 2 * 8 + lane % 32 // 4,
                col + i // 2 * 8 + lane % 4 * 2 + v,
            ] = acc[i * 2 + v]
