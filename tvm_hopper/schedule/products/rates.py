"""The constants of the estimate, as fitted.

Fitted 2026-11-22 by benchmarks/calibration/fit_choice.py to 2834 times of 178 problems
on an H200. Root mean square error of a time within 15% of the best: 10.0%. The
chosen configuration takes 2.5% longer than the best measured one, 2.2% on problems
that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=126.0,
    shortest_cycles=27.73,
    turn_cycles=151.0,
    turn_left=0.2087,
    crowded=0.0971,
    fill_bytes=96.41,
    narrow_span=0.5407,
    latency_cycles=1048.0,
    off_line=0.8203,
    l2_bytes=10820.0,
    outside_cycles=0.1529,
    start_cycles=1061.0,
    epilogue_cycles=3442.0,
    wide_bytes=14.8,
    narrow_bytes=7.451,
    overlap=0.8104,
    memory_bytes=2263.0,
    partial=0.6067,
    flop_power=1.622,
    load_power=4.269e-07,
    step_norm=3.529,
    time_norm=2.427,
)
