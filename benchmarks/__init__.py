"""Commands for a machine with a GPU: `python -m benchmarks.gemm`, `... .correctness`."""
