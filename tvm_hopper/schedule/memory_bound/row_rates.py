"""Constants of the memory-bound cost model, measured on an H200.

`python -m benchmarks.calibration.fit_row_rates` says how good a choice they make, fits them to the
times of benchmarks/results/row_times_*.json, and writes them here. Of 953 times of 154 programs the
configuration that these choose takes 2.2% longer than the best measured one; with fitted constants
it is 2.1%, and 2.4% of programs that were held out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowRates:
    """Bytes and cycles of one SM; `MemoryModel` scales them to a chip.

    Bytes in flight are those that thread blocks of an SM have requested; shares are of memory's
    rate. All of them were set by hand to those times before there was a fit.
    """

    memory_bytes: float = 18.8  # a cycle, read and written: 4.36 TB/s by 132 SMs
    load_latency: float = 2400.0  # cycles from a load to its data, of a memory that is busy
    barrier: float = 300.0  # cycles of a thread block's barrier
    barrier_thread: float = 2.0  # cycles for each thread that comes to it
    cluster_barrier: float = 1500.0  # cycles more where a cluster waits
    idle_share: float = 0.08  # lost by one thread block on an SM; by n of them, over n squared
    enough_bytes: float = 65536.0  # in flight, that memory can use
    enough_reloaded: float = 131072.0  # of rows that are loaded again behind the reductions
    crowded_share: float = 0.965  # left above that: reads and writes get in each other's way
    cluster_share: float = 0.88  # left where clusters have rows in registers
    two_reductions_share: float = 0.89  # where a block reduces a long row twice out of registers
    streamed_share: float = 0.7  # where rows are streamed twice: L2 answers the second pass
    staged_share: float = 0.97  # where rows wait in shared memory
    resident_bytes: float = 131072.0  # of staged rows on an SM, next to what they share
    resident_power: float = 0.27  # of what there is less of them
    elementwise_bytes: float = 32768.0  # in flight of elementwise kernels: more only crowd memory
    # A persistent kernel loads a row in each iteration over its rows.
    turn_latency: float = 1600.0  # cycles from a load of the next row to its data, from memory
    turn_l2_latency: float = 900.0  # of rows that were brought into L2 ahead of time
    turn_shared_latency: float = 60.0  # of rows that are in shared memory
    turn_barrier: float = 200.0  # as `barrier`, and the two after it
    turn_barrier_thread: float = 0.5
    turn_cluster_barrier: float = 600.0
    element_instructions: float = 7.0  # for an element
    sum_instructions: float = 9.0  # for an element in each sum of columns
    issued_warps: float = 4.0  # instructions of warps a cycle: an SM has four schedulers
    prefetched_bytes: float = 98304.0  # of rows in flight: loaded, or on their way to L2
    staged_bytes: float = 131072.0  # of rows on their way to shared memory
    least_bytes: float = 40960.0  # of rows in flight that memory needs
    prefetch_crowding: float = 0.2  # share lost to twice as many bytes in flight
    three_blocks_gain: float = 0.04  # share that three thread blocks gain: never at the same place
    vector_loss: float = 0.01  # share for each further vector of a thread
    staged_block_loss: float = 0.03  # share for each further thread block of staged rows
    scattered_loss: float = 0.05  # share of clusters above two: some SMs find no neighbours
    paired_sms: float = 112.0  # of 132, that are sure to find neighbours for such clusters


MEASURED = RowRates()
