"""CUDA and PTX intrinsics as TIR operators: one function for each instruction, below the passes.

`ptx/` is the only user of TVM's constructors of PTX and CUDA instructions. Beside it, one fault of
the wheel's CUDA code generation a file; `operators.py` makes known those that are operators of TIR.
"""

if __name__ != "tvm_hopper.codegen_patches":
    raise ImportError("codegen_patches/ is a part of tvm_hopper: import tvm_hopper.codegen_patches")
