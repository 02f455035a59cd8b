"""Programs that have nothing to do with this package, built with and without it.

    python _programs.py OUT.json

Writes the text of each. With `--without` the entry points of `tvm.backends` are hidden first, as
if nothing were installed; with `--one` it writes that of a module of several functions alone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

if "--without" in sys.argv:
    importlib.metadata.entry_points = lambda **_: ()

import tvm
from tvm import s_tir, te
from tvm.target import Target
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

SM80 = {"kind": "cuda", "arch": "sm_80"}
SM90 = {"kind": "cuda", "arch": "sm_90a"}


def add_one(threads: int = 128) -> s_tir.Schedule:
    a = te.placeholder((1024,), "float32", name="A")
    b = te.compute((1024,), lambda i: a[i] + 1, name="B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    (loop,) = sch.get_loops(sch.get_sblock("B"))
    outer, inner = sch.split(loop, [None, threads])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    return sch


def pipelined_matmul(asynchronous: bool) -> s_tir.Schedule:
    """Schedule a SIMT matmul with staged shared tiles, the form TVM lowers to cp.async."""
    a = te.placeholder((256, 256), "float16", name="A")
    b = te.placeholder((256, 256), "float16", name="B")
    k = te.reduce_axis((0, 256), name="k")
    c = te.compute((256, 256), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="C")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    block = sch.get_sblock("C")
    i, j, k = sch.get_loops(block)
    i0, i1 = sch.split(i, [None, 16])
    j0, j1 = sch.split(j, [None, 16])
    k0, k1 = sch.split(k, [None, 64])
    sch.reorder(i0, j0, i1, j1, k0, k1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    sch.bind(i1, "threadIdx.y")
    sch.bind(j1, "threadIdx.x")
    for index in (0, 1):
        copy = sch.cache_read(block, index, "shared.dyn")
        sch.compute_at(copy, k0)
        fused = sch.fuse(*sch.get_loops(copy)[-2:])
        _, y, x, vector = sch.split(fused, [None, 16, 16, 4 if asynchronous else 1])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        sch.vectorize(vector)
    sch.annotate(k0, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
    if asynchronous:
        sch.annotate(k0, "software_pipeline_async_stages", [0])
    return sch


def text(mod: object, target: object, **config: object) -> str:
    with tvm.transform.PassContext(config={f"tirx.{k}": v for k, v in config.items()}):
        executable = tvm.compile(mod, target=target)
    modules = [executable.mod, *executable.mod.imports]
    return "\n//----\n".join(f"// {m.kind}\n{m.inspect_source()}" for m in modules)


def dlight_gemv(target: str) -> str:
    from tvm.s_tir import dlight

    a = te.placeholder((1024, 1024), "float16", name="A")
    x = te.placeholder((1, 1024), "float16", name="X")
    k = te.reduce_axis((0, 1024), name="k")
    y = te.compute((1, 1024), lambda i, j: te.sum(a[j, k] * x[i, k], axis=k), name="Y")
    mod = tvm.IRModule({"main": te.create_prim_func([a, x, y])})
    with Target(target):
        mod = dlight.ApplyDefaultSchedule(dlight.gpu.GEMV(), dlight.gpu.Fallback())(mod)
    return text(mod, target)


def mixed() -> str:
    """Build a module with two kernels and a CPU function."""
    gpu = {
        n: add_one(t).mod["main"].with_attr("global_symbol", n) for n, t in (("f", 64), ("g", 32))
    }
    cpu = add_cpu().mod["main"].with_attr({"global_symbol": "h", "target": Target("llvm")})
    return text(tvm.IRModule({**gpu, "h": cpu}), SM90)


def add_cpu() -> s_tir.Schedule:
    a = te.placeholder((64,), "float32", name="A")
    b = te.compute((64,), lambda i: a[i] * 2, name="B")
    return s_tir.Schedule(te.create_prim_func([a, b]))


PROGRAMS: dict[str, Callable[[], str]] = {
    "cpu": lambda: text(add_cpu().mod, "llvm"),
    "cpu_c": lambda: text(add_cpu().mod, "c"),
    "sm80_sync": lambda: text(pipelined_matmul(False).mod, SM80),
    "sm80_async": lambda: text(pipelined_matmul(True).mod, SM80, use_async_copy=True),
    "sm90_sync": lambda: text(pipelined_matmul(False).mod, SM90),
    "sm90_async": lambda: text(pipelined_matmul(True).mod, SM90, use_async_copy=True),
    "sm90_no_storage_rewrite": lambda: text(
        pipelined_matmul(False).mod, SM90, disable_storage_rewrite=True
    ),
    "dlight_h100": lambda: dlight_gemv("nvidia/nvidia-h100"),
    "mixed": mixed,
}


CUBINS = ("sm80_async", "sm90_async")


def cubin(source: str, target: dict[str, str]) -> str:
    """Compile a text as TVM does on a machine with a GPU; return the hash of the machine code."""
    callback = tvm.get_global_func("tvm_callback_cuda_compile")
    with Target(target):
        return hashlib.sha256(bytes(callback(source))).hexdigest()


def build_ours() -> None:
    """Compile a kernel of the package, whose compile step then stands in front of TVM's."""
    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import workloads

    sch = s_tir.Schedule(workloads.matmul(64, 64, 64))
    hs.matmul(sch, "C")
    tvm.compile(sch.mod, target=SM90)


def main(out: str) -> None:
    chosen = ["mixed"] if "--one" in sys.argv else PROGRAMS
    result = {name: PROGRAMS[name]() for name in chosen}
    result["gate"] = str(hasattr(PIPELINE_MAP["s_tir"], "gate_of"))
    if "--ours-first" in sys.argv:
        build_ours()
    if shutil.which("nvcc"):
        for name in result.keys() & CUBINS:
            target = SM80 if name.startswith("sm80") else SM90
            source = result[name].split("// cuda\n")[1]
            result[f"{name}_cubin"] = cubin(source, target)
    result["loaded"] = str("tvm_hopper" in sys.modules)
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
