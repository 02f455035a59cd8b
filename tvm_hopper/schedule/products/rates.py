"""The constants of the estimate, as fitted.

Fitted 2026-11-23 by benchmarks/calibration/fit_choice.py to
5895 times of 556 problems on an H200.

Root mean square error of a time within 15% of the best: 8.0%.
The chosen configuration takes 2.5% longer than the best measured one,
2.5% on problems that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=113.1,
    shortest_cycles=21.59,
    turn_cycles=204.2,
    turn_left=0.404,
    crowded=0.1171,
    fill_bytes=126.7,
    narrow_span=1.168,
    latency_cycles=832.9,
    off_sector=1.088,
    off_line=0.3383,
    l2_bytes=9880.0,
    apart=0.345,
    outside_cycles=0.09314,
    together_cycles=1991.0,
    together_off=1537.0,
    start_cycles=3793.0,
    start_off=0.2396,
    wide_bytes=34.61,
    narrow_bytes=8.534,
    overlap=0.2635,
    memory_bytes=2437.0,
    partial=0.514,
    flop_power=1.538,
    meeting_cycles=1067.0,
    peer_cycles=185.8,
    exchange_bytes=20.98,
    kernel_cycles=2061.0,
    part_cycles=79.6,
    wide_parts=7.817,
    workspace_bytes=31.82,
    step_norm=3.788,
    time_norm=3.274,
)
