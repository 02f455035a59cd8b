"""The constants of the estimates of memory-bound kernels, of an H200.

Written by benchmarks/calibration/fit_row_rates.py, which says how good a choice they make.
"""

from .row_rates import RowRates

MEASURED = RowRates(
    memory_bytes=18.8,
    load_latency=2400.0,
    barrier=300.0,
    barrier_thread=2.0,
    cluster_barrier=1500.0,
    idle_share=0.08,
    enough_bytes=65536.0,
    enough_reloaded=131072.0,
    crowded_share=0.965,
    cluster_share=0.88,
    two_reductions_share=0.89,
    streamed_share=0.7,
    staged_share=0.97,
    resident_bytes=131072.0,
    resident_power=0.27,
    elementwise_bytes=32768.0,
    turn_latency=1600.0,
    turn_l2_latency=900.0,
    turn_shared_latency=60.0,
    turn_barrier=200.0,
    turn_barrier_thread=0.5,
    turn_cluster_barrier=600.0,
    element_instructions=7.0,
    sum_instructions=9.0,
    issued_warps=4.0,
    prefetched_bytes=98304.0,
    staged_bytes=131072.0,
    least_bytes=40960.0,
    prefetch_crowding=0.2,
    three_blocks_gain=0.04,
    vector_loss=0.01,
    staged_block_loss=0.03,
    scattered_loss=0.05,
    paired_sms=112.0,
)
