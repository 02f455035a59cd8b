"""The constants of the estimate, as fitted.

Fitted 2026-11-23 by benchmarks/calibration/fit_choice.py to
5942 times of 526 problems on an H200.

Root mean square error of a time within 15% of the best: 8.1%.
The chosen configuration takes 2.6% longer than the best measured one,
2.7% on problems that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=117.6,
    shortest_cycles=22.14,
    turn_cycles=210.6,
    turn_left=0.3979,
    crowded=0.1201,
    fill_bytes=108.1,
    narrow_span=0.8788,
    latency_cycles=848.5,
    off_sector=1.161,
    off_line=0.4168,
    l2_bytes=9597.0,
    apart=0.3398,
    outside_cycles=0.0923,
    together_cycles=1883.0,
    start_cycles=4403.0,
    wide_bytes=24.65,
    narrow_bytes=8.662,
    overlap=0.5058,
    memory_bytes=2471.0,
    partial=0.6487,
    flop_power=1.57,
    meeting_cycles=1076.0,
    peer_cycles=148.2,
    exchange_bytes=21.59,
    kernel_cycles=1653.0,
    part_cycles=85.0,
    wide_parts=7.177,
    workspace_bytes=29.18,
    step_norm=4.111,
    time_norm=3.274,
)
