"""A built library needs TVM's runtime and nothing of this package."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.cuda_build import records
from tvm_hopper.requests import keys
from tvm_hopper.testing import workloads

from . import _programs

LOADER = str(Path(__file__).with_name("_load_exported.py"))
H200 = "nvidia/nvidia-h200"

needs_linker = pytest.mark.skipif(shutil.which("g++") is None, reason="export_library needs g++")


def gemm(size: int = 256) -> tvm.tirx.PrimFunc:
    sch = s_tir.Schedule(workloads.matmul(size, size, size))
    hs.matmul(sch, "C")
    return sch.mod["main"]


def gemm_and_host_function() -> tvm.IRModule:
    host = _programs.add_cpu().mod["main"].with_attr("target", tvm.target.Target("llvm"))
    return tvm.IRModule(
        {
            "gemm": gemm().with_attr("global_symbol", "gemm"),
            "double_it": host.with_attr("global_symbol", "double_it"),
        }
    )


@needs_linker
def test_the_host_half_runs_where_the_package_is_hidden(fresh, tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    tvm.compile(gemm_and_host_function(), target=H200).export_library(str(path))
    assert "ran" in fresh("-W", "default", LOADER, str(path)).stdout


@needs_linker
@pytest.mark.gpu
def test_the_kernel_runs_where_the_package_is_hidden(fresh, tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    tvm.compile(gemm_and_host_function(), target=H200).export_library(str(path))
    assert "ran" in fresh("-W", "default", LOADER, str(path), "--gpu").stdout


def test_a_neighbour_keeps_its_text_beside_a_real_kernel() -> None:
    plain = _programs.add_one().mod["main"].with_attr("global_symbol", "f")
    alone = tvm.compile(tvm.IRModule({"f": plain}), target=H200).mod.imports[0].inspect_source()
    both = tvm.compile(
        tvm.IRModule({"f": plain, "g": gemm().with_attr("global_symbol", "g")}), target=H200
    )
    assert alone in [module.inspect_source() for module in both.mod.imports]
    assert set(records.compiled(both).kernels) == {"g_kernel"}


def test_a_source_does_not_depend_on_the_hash_seed(fresh) -> None:
    """Two builds with seeds of their own: one here, one in a process."""
    code = (
        "import tvm, tvm_hopper\n"
        "from tvm import s_tir\n"
        "from tvm_hopper import schedule as hs\n"
        "from tvm_hopper.testing import workloads\n"
        "sch = s_tir.Schedule(workloads.matmul('m', 1000, 264))\n"
        "hs.matmul(sch, 'C')\n"
        "built = tvm.compile(sch.mod, target='nvidia/nvidia-h200')\n"
        "text = built.mod.imports[0].inspect_source()\n"
    )
    there = fresh("-c", code + "print(text)", PYTHONHASHSEED="1").stdout
    here: dict[str, str] = {}
    exec(code, here)
    assert there.count("wgmma") > 1
    assert there.rstrip() == here["text"].rstrip()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_the_compiler_is_an_option_of_the_build() -> None:
    mod = tvm.IRModule({"main": gemm()})
    with tvm.transform.PassContext(config={keys.COMPILER: "nvcc", keys.FAST_MATH: True}):
        built = tvm.compile(mod, target=H200)
    result = records.compiled(built)  # after the context has ended, as a callback may be
    assert (result.compiler, result.math_flags) == ("nvcc", ("--use_fast_math",))
    assert tvm_hopper.cubin(built) == result.cubin


def test_lowering_and_compiling_are_quick() -> None:
    """Our passes under 0.3 s, schedule to cubin under 3 s, of this process alone."""
    import time

    def build(size: int) -> float:
        begin = time.process_time()
        records.cubin(tvm.compile(tvm.IRModule({"main": gemm(size)}), target=H200))
        return time.process_time() - begin

    assert min(build(size) for size in (1024, 2048)) < 3
    mod = tvm.IRModule({"main": gemm(4096)})
    begin = time.process_time()
    pipeline.lower_final(mod, H200)
    assert time.process_time() - begin < 0.3
