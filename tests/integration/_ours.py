"""Build one function of ours in a fresh process, our passes left out; print what was loaded."""

import sys

import tvm  # isort: skip
import tvm_ffi

import tvm_hopper  # noqa: F401

LATE = ("pipeline", "ir", "request", "cuda_build", "transforms", "schedule", "sim", "simulate")
early = [x for x in LATE if f"tvm_hopper.{x}" in sys.modules]
early += sorted({"rich", "matplotlib"} & set(sys.modules))
print("early:", early)
callback = tvm_ffi.get_global_func("tvm_callback_cuda_postproc", allow_missing=True)
print("callback:", callback)

import _programs  # noqa: E402

from tvm_hopper import pipeline  # noqa: E402

pipeline.passes.hook_passes = pipeline.passes.late_passes = pipeline.passes.host_passes = list
sch = _programs.add_one()
sch.annotate(sch.get_sblock("B"), "tvm_hopper.async_copy", "tma")
tvm.compile(sch.mod, target="nvidia/nvidia-h200")
print("tensor_intrin:", "tvm.s_tir.tensor_intrin" in sys.modules)
