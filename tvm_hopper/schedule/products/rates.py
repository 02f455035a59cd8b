"""The constants of the estimate, as fitted.

Fitted 2026-11-23 by benchmarks/calibration/fit_choice.py to
6283 times of 867 problems on an H200, of 341 of which one time alone is known.

Root mean square error of a time within 15% of the best: 8.3%.
The chosen configuration takes 2.7% longer than the best measured one,
2.7% on problems that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=116.7,
    shortest_cycles=21.3,
    turn_cycles=184.9,
    turn_left=0.3685,
    crowded=0.1114,
    fill_bytes=108.4,
    narrow_span=1.127,
    latency_cycles=912.8,
    off_sector=0.9821,
    l2_bytes=9027.0,
    apart=0.2981,
    outside_cycles=0.08957,
    together_cycles=1578.0,
    start_cycles=4963.0,
    wide_bytes=27.14,
    narrow_bytes=9.171,
    overlap=0.4055,
    memory_bytes=2495.0,
    partial=0.7706,
    flop_power=1.552,
    meeting_cycles=754.6,
    peer_cycles=141.1,
    exchange_bytes=18.52,
    kernel_cycles=1702.0,
    part_cycles=62.14,
    wide_parts=9.571,
    workspace_bytes=28.26,
    step_norm=3.72,
    time_norm=3.403,
)
