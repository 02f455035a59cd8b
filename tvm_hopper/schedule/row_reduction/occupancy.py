"""Registers per thread and thread blocks per SM of row kernels.

The counts of registers are those that the assembler took of RMSNorm, LayerNorm, softmax and their
gradients (`cuobjdump`), next to what a thread holds of a row.
"""

from __future__ import annotations

from math import inf

from tvm_hopper.requests.keys import MOST_BLOCKS_PER_SM
from tvm_hopper.requests.targets import arch_in_scope
from tvm_hopper.schedule.memory_bound.estimate import MemoryModel
from tvm_hopper.schedule.memory_bound.tiles import RegisterTile
from tvm_hopper.schedule.memory_bound.work import LoadedRows, RowWork

from .config import THREADS_PER_SM

REGISTERS_PER_SM = 65536
REGISTERS_PER_THREAD = 255
REGISTER_STEP = 8  # in which threads get them
REGISTER_BYTES = 4
# Registers of a thread next to its part of a row: of rows that it keeps, of rows that are loaded
# again, for each reduction after the first of those, and of rows that wait in shared memory.
BASE_REGISTERS, RELOADED_REGISTERS, REDUCTION_REGISTERS, STAGED_REGISTERS = 30, 20, 8, 40
MOST_RELOADED_BLOCKS = 3  # on an SM: registers are worth more than a fourth block of such rows
SUMS_BYTES = 2048  # of shared memory next to staged rows: sums of warps, barriers, alignment


def registers(work: RowWork, chunks: int, recompute: bool, reload: bool) -> int:
    """Estimate the registers of a thread with so many vectors, of one row or of several."""
    row = _of_bytes(chunks * work.vector * work.loaded)
    if reload:
        shared = _of_bytes(work.vector * work.shared)
        return RELOADED_REGISTERS + row + shared + REDUCTION_REGISTERS * (work.reductions - 1)
    kept = 0 if recompute else _of_bytes(chunks * work.vector * work.kept)
    return BASE_REGISTERS + row + max(row, kept)


def preloaded_registers(work: RowWork, chunks: int) -> int:
    """Return the registers of what all rows share, where it is loaded before the reductions."""
    return _of_bytes(chunks * work.vector * work.shared)


def least_registers(work: RowWork, chunks: int, recompute: bool, reload: bool) -> int:
    """Return the registers that a thread cannot do without: those of its part of a row."""
    held = max(work.loaded, 0 if recompute else work.kept + work.loaded // 2)
    base = RELOADED_REGISTERS if reload else BASE_REGISTERS
    return base + _of_bytes(chunks * work.vector * held)


def compute_rate(work: RowWork, recompute: bool) -> float:
    """Return for how many loaded bytes an SM can compute in a cycle what reductions read.

    With `recompute` each reduction does so, and what is stored.
    """
    count = work.instructions * (work.reductions + 1 if recompute else 1)
    return arch_in_scope().float32_lanes * work.loaded / count if count else inf


def blocks_of_registers(
    work: RowWork, tile: RegisterTile, num_registers: int, reload: bool, model: MemoryModel
) -> int:
    """Return how many thread blocks an SM has room for, and no more than bring enough bytes."""
    threads, columns = tile.threads * tile.rows, -(-work.columns // tile.cluster)
    enough = model.enough_blocks(tile.block_rows * columns * work.loaded, reload)
    given = -(-num_registers // REGISTER_STEP) * REGISTER_STEP
    room = min(REGISTERS_PER_SM // (given * threads), THREADS_PER_SM // threads, MOST_BLOCKS_PER_SM)
    room = min(room, MOST_RELOADED_BLOCKS) if reload else room
    return max(1, min(room, enough))


def blocks_of_staged(work: RowWork, tile: RegisterTile, preload: bool = False) -> int:
    """Return how many thread blocks with rows in shared memory an SM has room for; 0 for none."""
    need = part_of(work, tile) * (tile.rows * work.loaded + preload * work.shared) + SUMS_BYTES
    threads = tile.threads * tile.rows
    arch = arch_in_scope()
    if need > arch.smem_per_block:
        return 0
    held = arch.smem_per_sm // (need + arch.smem_reserved_per_block)
    of_registers = REGISTERS_PER_SM // (STAGED_REGISTERS * threads)
    room = min(of_registers, THREADS_PER_SM // threads, MOST_BLOCKS_PER_SM)
    return max(1, min(held, room))


def part_of(work: LoadedRows, tile: RegisterTile) -> int:
    """Return the columns that a thread block of a cluster has."""
    return -(-work.columns // tile.columns) * tile.columns // tile.cluster


def _of_bytes(num_bytes: int) -> int:
    return -(-num_bytes // REGISTER_BYTES)
