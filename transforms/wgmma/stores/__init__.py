"""Stores of accumulators: to global memory, shared tiles, rows that begin anywhere, by columns."""
