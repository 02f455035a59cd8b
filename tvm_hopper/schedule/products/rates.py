"""The constants of the estimate, as fitted.

Fitted 2026-11-22 by benchmarks/calibration/fit_choice.py to
3018 times of 192 problems on an H200.

Root mean square error of a time within 15% of the best: 9.9%.
The chosen configuration takes 2.2% longer than the best measured one,
2.2% on problems that were held out (geometric means).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=125.0,
    shortest_cycles=27.65,
    turn_cycles=153.7,
    turn_left=0.1141,
    crowded=0.1032,
    fill_bytes=96.46,
    narrow_span=0.5636,
    latency_cycles=1085.0,
    off_line=0.8083,
    l2_bytes=10380.0,
    outside_cycles=0.1548,
    start_cycles=4553.0,
    epilogue_cycles=0.01068,
    wide_bytes=16.57,
    narrow_bytes=6.311,
    overlap=0.7232,
    memory_bytes=2228.0,
    partial=0.7623,
    flop_power=1.673,
    load_power=0.0002498,
    step_norm=3.539,
    time_norm=2.544,
)
