"""The constants of the estimate, as fitted.

Fitted (draft).
"""

from .estimate import Rates

MEASURED = Rates(
    operand_bytes=116.2,
    shortest_cycles=21.59,
    turn_cycles=184.6,
    turn_left=0.3621,
    crowded=0.1195,
    fill_bytes=109.8,
    narrow_span=1.182,
    latency_cycles=998.5,
    off_sector=1.013,
    l2_bytes=9100.0,
    apart=0.2992,
    outside_cycles=0.08954,
    together_cycles=1619.0,
    start_cycles=4882.0,
    wide_bytes=26.11,
    narrow_bytes=8.787,
    overlap=0.5091,
    memory_bytes=2504.0,
    partial=0.7052,
    flop_power=1.687,
    meeting_cycles=947.0,
    peer_cycles=136.2,
    exchange_bytes=18.25,
    kernel_cycles=2036.0,
    part_cycles=43.73,
    wide_parts=12.74,
    workspace_bytes=29.61,
    step_norm=3.739,
    time_norm=3.458,
)
