"""The constants by which memory-bound kernels are estimated, and what each of them means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowRates:
    """Constants of an H200, in bytes and cycles of one SM; `MemoryModel` scales them to a chip.

    Bytes in flight are those that thread blocks of an SM have asked for. Where not said otherwise a
    constant was set by hand to the tables of benchmarks/results (row_configurations, gradients,
    long_rows, pairs), which benchmarks/calibration/fit_row_rates.py fits to.

    Attributes
    ----------
    memory_bytes
        Bytes a cycle that memory moves for an SM, read and written: 4.36 TB/s by 132 SMs.
    load_latency
        Cycles from a load to its data, of a memory that is busy.
    barrier, barrier_thread
        Cycles of a thread block's barrier, and for each thread that comes to it.
    cluster_barrier
        Cycles more where a cluster waits.
    idle_share
        Share of the time in which an SM with one thread block loads nothing; with n of them
        smaller by n squared.
    enough_bytes, enough_reloaded
        Bytes in flight that memory can use; of rows that are loaded again behind the reductions.
    crowded_share
        Share of memory's rate that is left above that: reads and writes get in each other's way.
    cluster_share
        Share that is left of it where clusters have rows in registers.
    two_reductions_share
        Share where one thread block reduces a long row twice out of registers.
    streamed_share
        Share where rows are streamed twice: L2 answers the second pass.
    staged_share
        Share where rows wait in shared memory.
    resident_bytes, resident_power
        Bytes of staged rows on an SM beside what they share; with less the share falls by a power.
    elementwise_bytes
        Bytes in flight of elementwise kernels: more of them only crowd memory.
    turn_latency, turn_l2_latency, turn_shared_latency
        Cycles of a persistent kernel's turn from a load of a row to its data: from memory, of rows
        that are in L2 ahead of time, of those in shared memory.
    turn_barrier, turn_barrier_thread, turn_cluster_barrier
        As `barrier`, `barrier_thread` and `cluster_barrier`, of such a turn.
    element_instructions, sum_instructions
        Instructions for an element, and for it in each sum of columns.
    issued_warps
        Instructions of warps that an SM issues in a cycle (PTX ISA: four schedulers).
    prefetched_bytes, staged_bytes
        Bytes of rows in flight of persistent kernels: loaded or on their way to L2; on their way to
        shared memory.
    least_bytes
        Bytes of rows in flight that such a kernel needs.
    prefetch_crowding
        Share of memory's rate that twice as many bytes in flight cost.
    three_blocks_gain
        Share that three thread blocks on an SM gain: they are never all at the same place.
    vector_loss, staged_block_loss
        Share for each further vector of a thread, and each further thread block of staged rows.
    scattered_loss
        Share where clusters have more than two thread blocks: some SMs find no neighbours.
    paired_sms
        SMs of an H200 that are sure to find neighbours for such clusters.
    """

    memory_bytes: float
    load_latency: float
    barrier: float
    barrier_thread: float
    cluster_barrier: float
    idle_share: float
    enough_bytes: float
    enough_reloaded: float
    crowded_share: float
    cluster_share: float
    two_reductions_share: float
    streamed_share: float
    staged_share: float
    resident_bytes: float
    resident_power: float
    elementwise_bytes: float
    turn_latency: float
    turn_l2_latency: float
    turn_shared_latency: float
    turn_barrier: float
    turn_barrier_thread: float
    turn_cluster_barrier: float
    element_instructions: float
    sum_instructions: float
    issued_warps: float
    prefetched_bytes: float
    staged_bytes: float
    least_bytes: float
    prefetch_crowding: float
    three_blocks_gain: float
    vector_loss: float
    staged_block_loss: float
    scattered_loss: float
    paired_sms: float
