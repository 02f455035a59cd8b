"""The constants of the estimate, as fitted.

draft
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=117.6,
    shortest_cycles=21.63,
    turn_cycles=211.4,
    turn_left=0.4024,
    crowded=0.1201,
    fill_bytes=108.2,
    narrow_span=0.8811,
    latency_cycles=848.6,
    off_sector=1.163,
    off_line=0.4175,
    l2_bytes=9601.0,
    apart=0.3399,
    outside_cycles=0.09227,
    together_cycles=1881.0,
    start_cycles=4405.0,
    wide_bytes=24.67,
    narrow_bytes=8.665,
    overlap=0.5056,
    memory_bytes=2471.0,
    partial=0.6485,
    flop_power=1.57,
    meeting_cycles=1078.0,
    peer_cycles=148.2,
    exchange_bytes=21.61,
    kernel_cycles=1650.0,
    part_cycles=84.88,
    wide_parts=7.187,
    workspace_bytes=29.17,
    step_norm=4.116,
    time_norm=3.274,
)
