"""The constants of the estimate, as fitted.

Fitted 2026-11-22 by benchmarks/calibration/fit_choice.py to
3961 times of 287 problems on an H200; off_sector and outside_cycles on 2026-11-23
(`--only off_sector outside_cycles`) to 4607 times of 353 problems.

Root mean square error of a time within 15% of the best: 9.1%.
The chosen configuration takes 2.4% longer than the best measured one
(geometric mean).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=122.0,
    shortest_cycles=20.22,
    turn_cycles=175.8,
    turn_left=0.289,
    crowded=0.105,
    fill_bytes=96.53,
    narrow_span=0.5956,
    latency_cycles=1227.0,
    off_sector=1.041,
    l2_bytes=9771.0,
    apart=0.2828,
    outside_cycles=0.08838,
    start_cycles=3988.0,
    epilogue_cycles=723.8,
    wide_bytes=18.6,
    narrow_bytes=8.642,
    overlap=0.841,
    memory_bytes=2478.0,
    partial=0.8493,
    flop_power=1.528,
    load_power=1.191e-07,
    meeting_cycles=1662.0,
    peer_cycles=133.3,
    exchange_bytes=19.68,
    step_norm=4.312,
    time_norm=2.297,
)
