"""The constants of the estimate, as fitted.

Fitted 2026-11-22 by benchmarks/calibration/fit_choice.py to
3255 times of 218 problems on an H200.

Root mean square error of a time within 15% of the best: 9.7%.
The chosen configuration takes 2.2% longer than the best measured one,
2.2% on problems that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=123.1,
    shortest_cycles=21.16,
    turn_cycles=163.8,
    turn_left=0.2772,
    crowded=0.1023,
    fill_bytes=106.8,
    narrow_span=0.6749,
    latency_cycles=1159.0,
    off_line=0.8984,
    l2_bytes=10940.0,
    outside_cycles=0.1567,
    start_cycles=5088.0,
    epilogue_cycles=0.00455,
    wide_bytes=20.28,
    narrow_bytes=6.647,
    overlap=0.6374,
    memory_bytes=2426.0,
    partial=0.8651,
    flop_power=1.587,
    load_power=0.0001202,
    step_norm=3.425,
    time_norm=2.442,
)
