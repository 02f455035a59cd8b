"""One WGMMA as a CUDA kernel: each block runs it once on an image of shared memory."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tvm_hopper.sim.layouts.fragments import a_fragment_index, lanes_of_rows, rows_of

# Type of an operand under PTX's name, and the numpy type that stores it.
STORED = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "b1": np.dtype(np.uint8),  # eight of them
}
INTEGERS = ("s8", "u8", "b1")
TRANSPOSED = ("f16", "bf16")  # PTX ISA 9.1, 9.7.15.5.2: imm-trans-a and -b are of these alone
IMAGE_BYTES = 48 * 1024
THREADS = 128


@dataclass(frozen=True)
class Instruction:
    """One form of wgmma.mma_async.

    Attributes
    ----------
    a_type, b_type, sum_type : str
        As PTX names them.
    n : int
    from_registers : bool
        Whether A is a fragment in registers.
    a_mn, b_mn : bool
        Whether an operand is MN-major.
    saturates : bool
        `.satfinite`.
    start : int
        What accumulators of integers hold before.
    """

    a_type: str
    b_type: str
    sum_type: str
    n: int
    from_registers: bool = False
    a_mn: bool = False
    b_mn: bool = False
    saturates: bool = False
    start: int = 0

    @property
    def stored_k(self) -> int:
        """Stored elements of k: 32 bytes of them."""
        return 32 // STORED[self.a_type].itemsize

    @property
    def k(self) -> int:
        """Elements of k."""
        return self.stored_k * (8 if self.a_type == "b1" else 1)

    @property
    def registers(self) -> int:
        """32-bit accumulators of a thread."""
        return self.n // 4 if self.sum_type == "f16" else self.n // 2

    @property
    def name(self) -> str:
        """Name of the kernel."""
        flags = (self.from_registers, self.a_mn, self.b_mn, self.saturates, bool(self.start))
        types = f"{self.a_type}_{self.b_type}_{self.sum_type}"
        return f"run_{types}_{self.n}_{''.join(str(int(flag)) for flag in flags)}"

    @property
    def ptx(self) -> str:
        """The instruction without its operands."""
        shape = f"m64n{self.n}k{self.k}"
        types = f"{self.sum_type}.{self.a_type}.{self.b_type}"
        types = f"satfinite.{types}" if self.saturates else types
        types = f"{types}.and.popc" if self.a_type == "b1" else types
        return f"wgmma.mma_async.sync.aligned.{shape}.{types}"

    def source(self) -> str:
        """Return the CUDA kernel; accumulators begin as `start` and are stored as 32-bit words."""
        count = self.registers
        kind, letter = ("float", "f") if self.sum_type == "f32" else ("unsigned", "r")
        sums = ", ".join(f"%{i}" for i in range(count))
        outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
        if self.from_registers:
            a, b = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}", f"%{count + 4}"
            ins = ", ".join(f'"r"(a[{i}])' for i in range(4)) + ', "l"(block[blockIdx.x].b + base)'
        else:
            a, b = f"%{count}", f"%{count + 1}"
            ins = '"l"(block[blockIdx.x].a + base), "l"(block[blockIdx.x].b + base)'
        flags = "" if self.a_type in INTEGERS else ", 1, 1"
        if self.a_type in TRANSPOSED:
            flags += "" if self.from_registers else f", {int(self.a_mn)}"
            flags += f", {int(self.b_mn)}"
        return f"""
extern "C" __global__ void {self.name}(const uint4* images, const Block* block,
        const unsigned* fragments, unsigned* out) {{
    extern __shared__ __align__(1024) char smem[];
    const int chunks = {IMAGE_BYTES // 16};
    const uint4* image = images + (long long)block[blockIdx.x].image * chunks;
    for (int i = threadIdx.x; i < chunks; i += {THREADS}) ((uint4*)smem)[i] = image[i];
    unsigned a[4];
    const long long own = (long long)block[blockIdx.x].fragment * {THREADS} + threadIdx.x;
    for (int i = 0; i < 4; ++i) a[i] = fragments[own * 4 + i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const unsigned long long base = (unsigned)__cvta_generic_to_shared(smem) >> 4;
    {kind} d[{count}];
    for (int i = 0; i < {count}; ++i) d[i] = {self.start};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{{ .reg .pred p; setp.eq.u32 p, 0, 0; "
        "{self.ptx} {{{sums}}}, {a}, {b}, p{flags}; }}"
        : {outs} : {ins});
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < {count}; ++i)
        out[((long long)blockIdx.x * {THREADS} + threadIdx.x) * {count} + i] = *(unsigned*)&d[i];
}}"""


# What one thread block does: bits of its descriptors with starts that count from the image.
BLOCK = np.dtype([("image", "<i4"), ("fragment", "<i4"), ("a", "<u8"), ("b", "<u8")])
BLOCK_SOURCE = "struct Block { int image, fragment; unsigned long long a, b; };"


def to_fragment(a: np.ndarray) -> np.ndarray:
    """Return A (64, k) as the registers of 128 threads, uint32 (128, 4)."""
    row, k = a_fragment_index(a.dtype.itemsize)
    warps = [a[16 * warp + row, k] for warp in range(4)]
    return np.ascontiguousarray(np.concatenate(warps)).view(np.uint32)


def from_accumulators(words: np.ndarray, instruction: Instruction) -> np.ndarray:
    """Return D (blocks, 64, n) as float64 from registers, uint32 (blocks, 128, registers)."""
    kind = {"f32": np.float32, "s32": np.int32, "f16": np.float16}[instruction.sum_type]
    values = np.ascontiguousarray(words).view(kind)
    d = np.empty((len(words), 64, instruction.n))
    for block, registers in zip(d, values, strict=True):
        for warp in range(4):
            rows_of(block, warp)[...] = lanes_of_rows(registers[32 * warp : 32 * warp + 32])
    return d
