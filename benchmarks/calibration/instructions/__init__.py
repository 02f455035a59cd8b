"""What a Hopper GPU computes with register instructions, against the simulator's functions."""
