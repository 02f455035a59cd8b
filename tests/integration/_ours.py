"""Build one function of ours in a fresh process, our passes left out."""

import sys

import _programs
import tvm

from tvm_hopper import pipeline

pipeline.passes.hook_passes = pipeline.passes.late_passes = pipeline.passes.host_passes = list
sch = _programs.add_one()
sch.annotate(sch.get_sblock("B"), "tvm_hopper.async_copy", "tma")
tvm.compile(sch.mod, target="nvidia/nvidia-h200")
print("tensor_intrin:", "tvm.s_tir.tensor_intrin" in sys.modules)
