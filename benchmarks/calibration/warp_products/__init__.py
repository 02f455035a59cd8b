"""Products of a warp and matrix movement on a Hopper GPU, against the simulator's functions."""
