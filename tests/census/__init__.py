"""Which passes act on each of a set of named kernels, and a hash of what these kernels become.

`python -m tests.census` prints the passes, with `--write` it writes `census.json` anew, with
`--texts FOLDER` the final TIR of each kernel, to be compared with that of another commit.
"""
