"""The project's own mutants of emitted kernels: `python -m tests.mutants`."""
