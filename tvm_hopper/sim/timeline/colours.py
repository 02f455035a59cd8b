"""Colours of a timeline: eight that colour-blind readers distinguish, after Okabe and Ito.

Greys of neighbours differ too; what a bar is is in it as a number.
"""

from __future__ import annotations

from tvm_hopper.sim.timeline.spans import Span

STAGES = (
    "#56B4E9",  # sky blue
    "#F0E442",  # yellow
    "#009E73",  # green
    "#E69F00",  # orange
    "#0072B2",  # blue
    "#CC79A7",  # purple
    "#A6761D",  # brown
    "#B2DF8A",  # light green
)
NO_STAGE = "#BDBDBD"
WAIT = "#FFFFFF"
WAIT_EDGE = "#9A9A9A"
FINDING = "#C00000"


def fill_colour(span: Span) -> str:
    """Return the colour of a span: that of its stage."""
    if span.kind == "wait":
        return WAIT
    return STAGES[span.stage % len(STAGES)] if span.stage >= 0 else NO_STAGE


def text_colour(background: str) -> str:
    """Return black or white, whatever is read better."""
    red, green, blue = (int(background[i : i + 2], 16) for i in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else "#FFFFFF"
