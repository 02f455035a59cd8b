"""Workloads and references that tests, tutorials and benchmarks share."""
