"""The constants of the estimate, as fitted.

Fitted 2026-11-23 by benchmarks/calibration/fit_choice.py to
5895 times of 556 problems on an H200.

Root mean square error of a time within 15% of the best: 8.1%.
The chosen configuration takes 2.5% longer than the best measured one,
2.5% on problems that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=113.2,
    shortest_cycles=21.64,
    turn_cycles=205.1,
    turn_left=0.4067,
    crowded=0.1172,
    fill_bytes=126.0,
    narrow_span=1.164,
    latency_cycles=835.9,
    off_sector=1.087,
    off_line=0.3364,
    l2_bytes=9848.0,
    apart=0.3447,
    outside_cycles=0.09331,
    together_cycles=1984.0,
    together_off=1542.0,
    start_cycles=3770.0,
    start_off=0.2383,
    wide_bytes=33.4,
    narrow_bytes=8.429,
    overlap=0.289,
    memory_bytes=2436.0,
    partial=0.5131,
    flop_power=1.544,
    meeting_cycles=1085.0,
    peer_cycles=185.8,
    exchange_bytes=20.97,
    kernel_cycles=2079.0,
    part_cycles=80.08,
    wide_parts=7.788,
    workspace_bytes=31.73,
    step_norm=3.809,
    time_norm=3.29,
)
