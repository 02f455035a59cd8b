"""Limits of an SM of compute capability 9.0 and of its instructions.

They go with the compute capability: H100, H200, H800, H20 and GH200 share them all, and one build
for sm_90a runs on each. What differs between these parts is in `facts.devices`.

Sources: CUDA C++ Programming Guide, "Compute Capabilities" (memory, threads, registers) and
PTX ISA 9.1 (section named at each constant).
"""

SMEM_PER_SM = 233472  # bytes: 228 KiB
SMEM_RESERVED_PER_BLOCK = 1024  # bytes that CUDA keeps for itself in every thread block
SMEM_PER_BLOCK = 232448  # bytes: 227 KiB, the opt-in limit of one thread block

REGISTERS_PER_BLOCK = 65536  # 32-bit registers; one thread block may hold all of an SM's
MAX_REGISTERS_PER_THREAD = 255
REGISTER_ALLOCATION_UNIT = 8  # registers a thread are handed out in eights

THREADS_PER_WARP = 32
WARPS_PER_WARP_GROUP = 4  # PTX ISA, 9.7.15: four consecutive warps, the first a multiple of four
WARP_GROUP_THREADS = 128
MAX_GRID_YZ = 65535  # thread blocks of a grid in y and in z
MAX_THREADS = 1024  # of one thread block

NAMED_BARRIERS = 16  # PTX ISA, `bar`: 0 to 15, and `__syncthreads` is number 0

MBARRIER_BYTES = 8  # PTX ISA, 9.7.13.15.1: size and alignment of the object
MBARRIER_MAX_COUNT = (1 << 20) - 1  # PTX ISA, 9.7.13.15.2: of expected and pending arrivals
MBARRIER_MAX_TX_BYTES = (1 << 20) - 1  # PTX ISA, 9.7.13.15.2: of the transaction count, either sign

SETMAXNREG_MIN = 24  # PTX ISA, 9.7.19.5 `setmaxnreg`
SETMAXNREG_MAX = 256
SETMAXNREG_STEP = 8

BULK_ALIGNMENT = 16  # bytes; PTX ISA, `cp.async.bulk`: size and both addresses
