"""What CUDA code generation of the TVM wheel lacks, one fault a file."""

if __name__ != "tvm_hopper.codegen_patches":
    raise ImportError("codegen_patches/ is a part of tvm_hopper: import tvm_hopper.codegen_patches")
