"""Architectures: limits, asynchronous operations and register reallocation of each.

    SM_90A    H100, H200, H800, H20, GH200: one build runs on each (see `facts.devices`)
    SM_80     A100, A30, and as PTX every later chip

A `Processor` is what copies and waits are planned for: the operations that it executes, and the
memory on chip that they fill. An `Arch` is one whose threads share that memory, a GPU; what it has
next to is of no meaning elsewhere. Machines of one thread are in `facts.hexagon`.

A plan that depends on the chip has it as a field, and a pass takes it from the function's target
(`requests.targets.processor_of`, `arch_of`). Constants that hold for every GPU are in
`facts.programming_model`.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (memory,
threads, registers) and "Thread Block Clusters"; PTX ISA 9.1, "Target ISA Notes" of each instruction
(`cp.async`: sm_80; `cp.async.bulk`, clusters: sm_90; `wgmma`, `setmaxnreg`: sm_90a).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from .async_ops import ASYNC, ASYNC_OPS, GENERIC, MBARRIER

# Sums of float8 in float32, sm_90: a WGMMA cuts its 32 products (not normalized: the exponents of
# their factors are added) and the sum so far toward zero, to so many bits below the largest
# exponent among them, adds these exactly, and cuts the result to so many bits of fraction. PTX
# (9.7.15.5.2) leaves this open. Measured on an H200, bit for bit, k 32 to 4096, both types.
FLOAT8_SUM_BITS = 13

KIB = 1024


@dataclass(frozen=True)
class Processor(ABC):
    """A processor with asynchronous operations.

    Attributes
    ----------
    name
        As a target names it.
    async_ops
        Names of the rows of `ASYNC_OPS` that it executes.
    proxies
        The views of memory that operations on it use.

    Raises
    ------
    ValueError
        It names an operation without a row, or one whose proxy it lacks.
    """

    name: str
    async_ops: tuple[str, ...]
    proxies: tuple[str, ...]

    def __post_init__(self) -> None:
        for op in self.async_ops:
            if op not in ASYNC_OPS:
                raise ValueError(f"{self.name}: found {op}; need one of {', '.join(ASYNC_OPS)}")
            if ASYNC_OPS[op].proxy not in self.proxies:
                need = " or ".join(self.proxies)
                raise ValueError(
                    f"{self.name}: found {op} by the {ASYNC_OPS[op].proxy} proxy; need {need}"
                )

    @property
    def has_threads(self) -> bool:
        """Whether threads share a kernel's work; else one thread runs the whole function."""
        return False

    def mechanisms(self, is_load: bool) -> tuple[str, ...]:
        """Return the mechanisms by which it copies onto the chip, or from it, by name."""
        rows = [ASYNC_OPS[name] for name in self.async_ops]
        return tuple(sorted({x.mechanism for x in rows if x.mechanism and x.is_load == is_load}))

    @property
    @abstractmethod
    def tile_bytes(self) -> int:
        """Bytes on chip that the tiles of one kernel may have."""


@dataclass(frozen=True)
class Arch(Processor):
    """The architecture of a GPU, as the compiler names it: the `arch` of a cuda target.

    Attributes
    ----------
    compute_capability
        Major and minor.
    smem_per_block
        Bytes of shared memory that one thread block may have, after opting in.
    smem_per_sm
        Bytes of shared memory of one SM.
    smem_reserved_per_block
        Bytes of an SM's that CUDA keeps for itself in every thread block.
    registers_per_block, registers_per_sm
        32-bit registers.
    max_registers_per_thread
        32-bit registers that an instruction can name.
    register_allocation_unit
        Registers a thread are handed out in multiples of it.
    max_threads_per_sm, max_blocks_per_sm
        That one SM holds at a time.
    float32_lanes
        Instructions of 32-bit floats that an SM's threads finish in a cycle (CUDA C++ Programming
        Guide, "Arithmetic Instructions").
    has_setmaxnreg
        Whether registers move between the warp groups of a running thread block.
    max_cluster_size
        The portable size of a cluster, in thread blocks; 1: there are no clusters.
    largest_cluster_size
        Thread blocks of a cluster at most, where the kernel is allowed sizes that are not portable
        (CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) and the part has as many SMs together.
    is_specific
        Code for it runs on chips of this compute capability alone, and on no later one (the suffix
        `a`). Else it is shipped as PTX, which the driver compiles for the chip at hand.
    """

    compute_capability: tuple[int, int]
    smem_per_block: int
    smem_per_sm: int
    smem_reserved_per_block: int
    registers_per_block: int
    registers_per_sm: int
    max_registers_per_thread: int
    register_allocation_unit: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    float32_lanes: int
    has_setmaxnreg: bool
    max_cluster_size: int
    largest_cluster_size: int
    is_specific: bool = False

    @property
    def has_threads(self) -> bool:
        """Whether threads share a kernel's work: all that a thread block runs."""
        return True

    @property
    def tile_bytes(self) -> int:
        """Bytes of shared memory that the tiles of one thread block may have."""
        return self.smem_per_block

    @property
    def has_producers(self) -> bool:
        """Whether copies complete on mbarriers, by which threads hand over what they load."""
        return any(ASYNC_OPS[op].completion == MBARRIER for op in self.async_ops)

    @property
    def waits_for_launches(self) -> bool:
        """Whether a kernel may begin early and wait for earlier launches (9.7.13.13)."""
        return self.compute_capability >= (9, 0)

    @property
    def converts_float8(self) -> bool:
        """Whether it converts from and to float8 (cvt, PTX ISA 9.7.9.21: sm_89 and later)."""
        return self.compute_capability >= (8, 9)

    @property
    def has_clusters(self) -> bool:
        """Whether thread blocks of a cluster reach one another's shared memory."""
        return self.max_cluster_size > 1


SM_90A = Arch(
    name="sm_90a",
    compute_capability=(9, 0),
    smem_per_block=227 * KIB,
    smem_per_sm=228 * KIB,
    smem_reserved_per_block=1 * KIB,
    registers_per_block=64 * KIB,
    registers_per_sm=64 * KIB,
    max_registers_per_thread=255,
    register_allocation_unit=8,  # 256 of a warp
    max_threads_per_sm=2048,
    max_blocks_per_sm=32,
    float32_lanes=128,
    async_ops=(
        "cp_async",
        "cp_async_arrive",
        "bulk_load",
        "tma_load",
        "tma_store",
        "bulk_store",
        "tma_reduce",
        "bulk_reduce",
        "wgmma",
    ),
    proxies=(GENERIC, ASYNC),
    has_setmaxnreg=True,
    max_cluster_size=8,
    largest_cluster_size=16,
    is_specific=True,
)

SM_80 = Arch(
    name="sm_80",
    compute_capability=(8, 0),
    smem_per_block=163 * KIB,
    smem_per_sm=164 * KIB,
    smem_reserved_per_block=1 * KIB,
    registers_per_block=64 * KIB,
    registers_per_sm=64 * KIB,
    max_registers_per_thread=255,
    register_allocation_unit=8,
    max_threads_per_sm=2048,
    max_blocks_per_sm=32,
    float32_lanes=64,
    async_ops=("cp_async",),
    proxies=(GENERIC,),
    has_setmaxnreg=False,
    max_cluster_size=1,
    largest_cluster_size=1,
)

ARCHS = {arch.name: arch for arch in (SM_80, SM_90A)}  # by the `arch` of a cuda target
DEFAULT_ARCH = SM_90A  # of what names none, as a function without a target
MAX_CLUSTER = SM_90A.max_cluster_size  # thread blocks, on every chip that has clusters
LARGEST_CLUSTER = SM_90A.largest_cluster_size  # on some
