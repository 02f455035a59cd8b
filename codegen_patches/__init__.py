"""What CUDA code generation of the TVM wheel lacks; each file names the fault it stands for."""

if __name__ != "tvm_hopper.codegen_patches":
    raise ImportError("codegen_patches/ is a part of tvm_hopper: import tvm_hopper.codegen_patches")
