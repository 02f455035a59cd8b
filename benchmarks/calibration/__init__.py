"""Experiments on a Hopper GPU about what the simulator assumes."""
