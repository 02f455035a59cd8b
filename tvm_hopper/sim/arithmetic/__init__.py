"""Arithmetic of PTX register instructions: bits in, bits out, for any number of lanes."""
