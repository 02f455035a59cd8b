"""What a Hopper GPU reads and writes where, against the simulator's decoders."""
