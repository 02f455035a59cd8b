"""The constants of the estimate, as fitted.

Fitted 2026-11-22 by benchmarks/calibration/fit_choice.py to
3724 times of 256 problems on an H200.

Root mean square error of a time within 15% of the best: 9.8%.
The chosen configuration takes 2.4% longer than the best measured one,
2.4% on problems that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=122.5,
    shortest_cycles=21.39,
    turn_cycles=153.1,
    turn_left=2.214e-05,
    crowded=0.113,
    fill_bytes=95.65,
    narrow_span=0.5852,
    latency_cycles=1239.0,
    off_line=0.7038,
    l2_bytes=9534.0,
    outside_cycles=0.1492,
    start_cycles=2953.0,
    epilogue_cycles=1799.0,
    wide_bytes=19.47,
    narrow_bytes=7.762,
    overlap=0.8672,
    memory_bytes=2498.0,
    partial=0.8429,
    flop_power=1.401,
    load_power=2.596e-08,
    meeting_cycles=2090.0,
    peer_cycles=186.1,
    exchange_bytes=13.43,
    step_norm=3.97,
    time_norm=2.248,
)
