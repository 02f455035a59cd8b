"""The constants of the estimate, as fitted.

Fitted 2026-11-23 by benchmarks/calibration/fit_choice.py to
3961 times of 287 problems on an H200.

Root mean square error of a time within 15% of the best: 9.1%.
The chosen configuration takes 2.1% longer than the best measured one,
2.2% on problems that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=124.6,
    shortest_cycles=20.93,
    turn_cycles=178.0,
    turn_left=0.2843,
    crowded=0.1013,
    fill_bytes=99.02,
    narrow_span=0.609,
    latency_cycles=1231.0,
    off_line=0.765,
    l2_bytes=9797.0,
    apart=0.2822,
    outside_cycles=0.08893,
    start_cycles=4003.0,
    epilogue_cycles=557.2,
    wide_bytes=17.27,
    narrow_bytes=8.202,
    overlap=0.8466,
    memory_bytes=2477.0,
    partial=0.8521,
    flop_power=1.54,
    load_power=1.165e-07,
    meeting_cycles=1811.0,
    peer_cycles=132.8,
    exchange_bytes=19.43,
    step_norm=4.25,
    time_norm=2.319,
)
