"""From a hand-written kernel to its final host and device functions, by TVM's stock passes.

The body of every kernel stands in a `hand_threaded` attribute and holds one dynamic shared
allocation, so neither ThreadSync nor the merging of shared memory changes it.
"""

from dataclasses import dataclass

import tvm
import tvm.s_tir.pipeline  # registers the pipeline "s_tir"
from tvm.tirx import PrimFunc, compilation_pipeline as pipelines
from tvm.tirx.build import split_host_device_mods
from tvm.tirx.transform import BindTarget


@dataclass(frozen=True)
class Lowered:
    """The two functions that exist when code generation begins, and the modules that hold them."""

    host: PrimFunc
    device: PrimFunc
    host_module: tvm.IRModule
    device_module: tvm.IRModule
    target: tvm.target.Target

    @property
    def arch(self) -> str:
        """What it is built for, as nvcc names it."""
        return str(self.target.attrs["arch"])

    def cuda_source(self) -> str:
        """Print the kernel as CUDA."""
        return tvm.target.codegen.build_module(self.device_module, self.target).inspect_source()


def lower(func: PrimFunc, arch: str = "sm_90a") -> Lowered:
    """Run the stock pipeline and its host and device finalisation."""
    target = tvm.target.Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"})
    mod = BindTarget(target)(tvm.IRModule({"main": func}))
    # StorageRewrite gives every view of shared memory one name; reports want theirs
    with target, tvm.transform.PassContext(disabled_pass=["tirx.StorageRewrite"]):
        passes, finalize_host, finalize_device = pipelines.get_tir_pipeline("s_tir")
        host, devices = split_host_device_mods(passes(mod))
        host = finalize_host()(host)
        ((device_target, device),) = devices.items()
        device = finalize_device()(device)
    return Lowered(
        next(iter(host.functions.values())),
        next(iter(device.functions.values())),
        host,
        device,
        device_target,
    )
