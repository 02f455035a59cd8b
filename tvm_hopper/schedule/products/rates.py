"""The constants of the estimate, as fitted.

Fitted (draft).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=116.3,
    shortest_cycles=21.64,
    turn_cycles=189.9,
    turn_left=0.355,
    crowded=0.1206,
    fill_bytes=108.6,
    narrow_span=1.184,
    latency_cycles=1010.0,
    off_sector=0.9952,
    l2_bytes=9266.0,
    apart=0.2854,
    outside_cycles=0.08942,
    together_cycles=1654.0,
    start_cycles=4880.0,
    wide_bytes=26.3,
    narrow_bytes=8.768,
    overlap=0.508,
    memory_bytes=2497.0,
    partial=0.703,
    flop_power=1.729,
    meeting_cycles=939.8,
    peer_cycles=124.8,
    exchange_bytes=17.58,
    kernel_cycles=2015.0,
    part_cycles=41.01,
    wide_parts=13.22,
    workspace_bytes=29.91,
    step_norm=3.853,
    time_norm=3.46,
)
