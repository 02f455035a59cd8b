"""A fuzzer of the road from a program to a kernel: `python -m tests.fuzz`, docs/fuzzing.md."""
