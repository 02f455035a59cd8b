"""Reference evaluation of a plain program on parts of its outputs, with error bounds.

    reference = Reference(mod)                reads, lifts to float64, builds for the CPU, once
    reference.evaluate(arrays, {2: box})      values and error bounds of a box of parameter 2

`plain` reads the program, `regions` finds what of each buffer a part of an output needs, `lift`
and `rounding` carry values and error bounds through an expression, `emit` makes one function of
it. The package imports no pass of this project: it must not share their mistakes.
"""
