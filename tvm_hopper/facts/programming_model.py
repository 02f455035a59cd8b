"""Constants of the CUDA and PTX programming model, the same on every chip.

What differs from one chip to another is in `facts.arch`.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (rows that
are the same for every one in the table) and PTX ISA 9.1 (section named at each constant).
"""

THREADS_PER_WARP = 32
WARPS_PER_WARP_GROUP = 4  # PTX ISA, 9.7.15: four consecutive warps, the first a multiple of four
WARP_GROUP_THREADS = 128
MAX_GRID_X = (1 << 31) - 1  # thread blocks of a grid in x
MAX_GRID_YZ = 65535  # and in y and in z
MAX_THREADS = 1024  # of one thread block
MAX_BLOCK_Z = 64  # of these in z
MAX_EXTENTS = {  # of one axis of a launch; all threads of a block together: MAX_THREADS
    "threadIdx.z": MAX_BLOCK_Z,
    "blockIdx.x": MAX_GRID_X,
    "blockIdx.y": MAX_GRID_YZ,
    "blockIdx.z": MAX_GRID_YZ,
}
WORD_BYTES = 4  # of a register
THREAD_ACCESS_BYTES = 16  # PTX ISA, `ld`: of the widest vector (.v4.b32), at its own alignment

NAMED_BARRIERS = 16  # PTX ISA, `bar`: 0 to 15, and `__syncthreads` is number 0

MBARRIER_BYTES = 8  # PTX ISA, 9.7.13.15.1: size and alignment of the object
MBARRIER_MAX_COUNT = (1 << 20) - 1  # PTX ISA, 9.7.13.15.2: of expected and pending arrivals
MBARRIER_MAX_TX_BYTES = (1 << 20) - 1  # PTX ISA, 9.7.13.15.2: of the transaction count, either sign

SETMAXNREG_MIN = 24  # PTX ISA, 9.7.19.5 `setmaxnreg`
SETMAXNREG_MAX = 256
SETMAXNREG_STEP = 8

BULK_ALIGNMENT = 16  # bytes; PTX ISA, `cp.async.bulk`: size and both addresses

# CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"
SECTOR_BYTES = 32  # of memory that the caches read and write at once
LINE_BYTES = 128  # four sectors of one line
