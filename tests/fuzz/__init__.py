"""A fuzzer for the whole road from a program to a kernel: `python -m tests.fuzz`, docs/fuzzing.md."""
