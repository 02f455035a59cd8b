"""A run as a picture: one lane for each role of a CTA's warps, and for each unit, waits visible.

Time counts scheduler steps, not cycles: it shows order and overlap, not speed.
"""

from tvm_hopper.sim.timeline.timeline import Timeline

__all__ = ["Timeline"]
