"""Fitted constants of the product cost model.

Fitted 2026-11-23 by benchmarks/calibration/fit_choice.py to
5895 times of 556 problems on an H200.

Root mean square error of a time within 15% of the best: 8.1%.
The chosen configuration takes 2.5% longer than the best measured one,
2.5% on problems that were held out (geometric means).
"""

from .rate_constants import Rates

MEASURED = Rates(
    operand_bytes=113.2,
    shortest_cycles=21.64,
    slot_handover_cycles=205.1,
    handover_share_pending=0.4067,
    register_pressure_cost=0.1172,
    fill_bytes=126.0,
    narrow_swizzle_cost=1.164,
    latency_cycles=835.9,
    off_sector=1.087,
    off_line=0.3364,
    l2_bytes=9848.0,
    split_k_l2_exponent=0.3447,
    out_of_bounds_row_cycles=0.09331,
    multicast_cycles=1984.0,
    multicast_off_sector_cycles=1542.0,
    start_cycles=3770.0,
    start_off_sector_cost=0.2383,
    wide_store_bytes=33.4,
    narrow_store_bytes=8.429,
    epilogue_overlap=0.289,
    memory_bytes=2436.0,
    partial_sector_cost=0.5131,
    flop_power=1.544,
    cluster_sum_cycles=1085.0,
    cluster_peer_cycles=185.8,
    exchange_bytes=20.97,
    second_kernel_cycles=2079.0,
    partial_sum_cycles=80.08,
    wide_store_partial_sum_factor=7.788,
    workspace_bytes=31.73,
    step_exponent=3.809,
    time_exponent=3.29,
)
