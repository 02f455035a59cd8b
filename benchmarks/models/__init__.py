"""Whole models against PyTorch and TVM's own pipeline: `python -m benchmarks.models --help`."""
