"""PTX intrinsics: one function for each instruction that the lowering emits, by family.

Each returns the TIR expression of one instruction. It is a statement by itself (`ir.seq` takes it),
unless the function's docstring says that it has a value. Addresses are pointers (`address_of(...)`)
unless said otherwise, byte counts have `bytes` in their names. None of them decides anything: who
executes an instruction, and when, is up to the passes.

Section numbers are those of PTX ISA 9.1.
"""
