"""Shared code of memory-bound kernels: row programs, register tiles, estimates."""
