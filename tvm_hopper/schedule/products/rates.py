"""The constants of the estimate, as fitted.

Fitted 2026-11-23 by benchmarks/calibration/fit_choice.py to
4461 times of 331 problems on an H200.

Root mean square error of a time within 15% of the best: 9.6%.
The chosen configuration takes 2.4% longer than the best measured one,
2.4% on problems that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=123.8,
    shortest_cycles=21.22,
    turn_cycles=184.6,
    turn_left=0.3086,
    crowded=0.08677,
    fill_bytes=93.35,
    narrow_span=0.5918,
    latency_cycles=1199.0,
    off_line=0.6813,
    l2_bytes=9324.0,
    apart=0.277,
    outside_cycles=0.1548,
    together=0.2773,
    together_cycles=29.84,
    start_cycles=4442.0,
    epilogue_cycles=399.2,
    wide_bytes=19.57,
    narrow_bytes=8.114,
    overlap=0.7568,
    memory_bytes=2410.0,
    partial=1.094,
    flop_power=1.598,
    load_power=6.721e-05,
    meeting_cycles=1494.0,
    peer_cycles=130.6,
    exchange_bytes=17.9,
    step_norm=4.469,
    time_norm=2.497,
)
