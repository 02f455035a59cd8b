"""The constants of the estimate, as fitted.

Fitted 2026-11-22 by benchmarks/calibration/fit_choice.py to
3724 times of 256 problems on an H200.

Root mean square error of a time within 15% of the best: 9.7%.
The chosen configuration takes 2.2% longer than the best measured one,
2.2% on problems that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=122.7,
    shortest_cycles=21.3,
    turn_cycles=171.9,
    turn_left=0.2996,
    crowded=0.1071,
    fill_bytes=97.91,
    narrow_span=0.6075,
    latency_cycles=1193.0,
    off_line=0.7588,
    l2_bytes=9800.0,
    apart=0.2822,
    outside_cycles=0.1515,
    start_cycles=1505.0,
    epilogue_cycles=3336.0,
    wide_bytes=18.72,
    narrow_bytes=7.542,
    overlap=0.8936,
    memory_bytes=2478.0,
    partial=0.8517,
    flop_power=1.55,
    load_power=5.75e-05,
    meeting_cycles=1704.0,
    peer_cycles=77.64,
    exchange_bytes=16.63,
    step_norm=4.187,
    time_norm=2.336,
)
