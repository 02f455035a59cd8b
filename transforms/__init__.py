"""The TIR passes: one file, one pass, one test file each. The order they run in is `tvm_hopper.pipeline`."""

if __name__ != "tvm_hopper.transforms":
    raise ImportError("transforms/ is a part of tvm_hopper: import tvm_hopper.transforms")
