"""The final modules of a build are found again by its executable, and only by its own."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi

from tvm_hopper import HopperError, VerifyError, capture, pipeline
from tvm_hopper.cuda_build import build
from tvm_hopper.requests import keys, marks

from . import _programs

H200 = "nvidia/nvidia-h200"

pytestmark = pytest.mark.usefixtures("plain_lowering")


def ours(name: str = "main", threads: int = 128, **attributes: object) -> tvm.IRModule:
    sch = _programs.add_one(threads)
    sch.annotate(sch.get_sblock("B"), keys.ASYNC_COPY, "tma")
    return tvm.IRModule({name: sch.mod["main"].with_attr({"global_symbol": name, **attributes})})


def test_modules_are_those_that_were_printed() -> None:
    executable = tvm.compile(ours(), target=H200)
    record = capture.lookup(executable)
    assert record.source == executable.mod.imports[0].inspect_source()
    assert record.kernels == ("main_kernel",)
    final = pipeline.lower_final(ours(), H200)
    tvm.ir.assert_structural_equal(record.device["main_kernel"], final.device["main_kernel"])
    assert record.host["main"].script() == final.host["main"].script()
    assert marks.is_marked(record.device["main_kernel"])
    assert capture.find(record.source) is record
    assert (record.compiler, record.fast_math, record.check_assembler_log) == ("nvrtc", False, True)


def test_options_travel_with_the_record() -> None:
    mod = ours(**{keys.COMPILER: "nvcc", keys.CHECKS: keys.SYNCHRONIZATION})
    with tvm.transform.PassContext(config={keys.FAST_MATH: True}):
        record = capture.lookup(tvm.compile(mod, target=H200).mod)
    assert (record.compiler, record.fast_math, record.check_assembler_log) == ("nvcc", True, False)


def test_final_checks_see_what_will_be_printed(monkeypatch) -> None:
    seen = []

    def check(kernel: tvm.tirx.PrimFunc, host: tvm.tirx.PrimFunc | None) -> None:
        seen.append([func.attrs["global_symbol"] for func in (kernel, host)])
        raise VerifyError("main_kernel: found a race")

    monkeypatch.setattr(pipeline.passes, "final_checks", lambda: [check])
    with pytest.raises(VerifyError, match="main_kernel: found a race"):
        tvm.compile(ours(), target=H200)
    assert seen == [["main_kernel", "__tvm_ffi_main"]]
    tvm.compile(ours(**{keys.CHECKS: keys.ASSEMBLER_LOG}), target=H200)
    tvm.compile(_programs.add_one().mod, target=H200)
    assert len(seen) == 1


def test_two_builds_do_not_mix() -> None:
    first, second = tvm.compile(ours("f"), target=H200), tvm.compile(ours("g", 64), target=H200)
    assert capture.lookup(first).kernels == ("f_kernel",)
    assert capture.lookup(second).kernels == ("g_kernel",)


def test_builds_in_threads_do_not_mix() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def build(threads: int) -> tuple[str, ...]:
        return capture.lookup(tvm.compile(ours(f"t{threads}", threads), target=H200)).kernels

    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(build, (32, 64, 128, 256, 512, 1024)))
    assert names == [(f"t{n}_kernel",) for n in (32, 64, 128, 256, 512, 1024)]


def test_kernels_for_two_targets_are_two_records() -> None:
    small = tvm.target.Target({"kind": "cuda", "arch": "sm_90a", "max_threads_per_block": 512})
    f, g = ours("f")["f"].with_attr("target", small), ours("g")["g"]
    executable = tvm.compile(tvm.IRModule({"f": f, "g": g}), target=H200)
    assert {r.kernels for r in capture.lookup_all(executable)} == {("f_kernel",), ("g_kernel",)}
    with pytest.raises(HopperError, match=r"found 2 CUDA modules of ours \(.*\); need one"):
        capture.lookup(executable)


def test_a_foreign_executable_is_refused() -> None:
    executable = tvm.compile(_programs.add_one(threads=16).mod, target=H200)
    with pytest.raises(HopperError, match=r"this process did not lower .*build it here"):
        capture.lookup(executable)


def test_a_module_without_cuda_is_refused() -> None:
    with pytest.raises(HopperError, match="found no CUDA module"):
        capture.lookup(tvm.compile(_programs.add_cpu().mod, target="llvm"))


def test_something_else_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"found int; need what tvm\.compile returned"):
        capture.lookup(3)


def test_a_module_without_text_says_so(monkeypatch) -> None:
    monkeypatch.setattr(capture, "cuda_sources", lambda _: [""])
    with pytest.raises(HopperError, match="CUDA binaries without their text"):
        capture.lookup(object())


def test_old_builds_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(capture, "KEPT", 2)
    builds = [tvm.compile(ours(f"k{n}", 32 * n), target=H200) for n in (1, 2, 3)]
    with pytest.raises(HopperError, match="the last 2 builds are kept"):
        capture.lookup(builds[0])
    assert capture.lookup(builds[2]).kernels == ("k3_kernel",)


def test_another_listener_is_still_asked() -> None:
    name = "tvm_callback_cuda_postproc"
    before = tvm_ffi.get_global_func(name, allow_missing=True)
    seen = []

    def listen(code: str, _target: object) -> str:
        seen.append(len(code))
        return code + "\n// seen"

    tvm_ffi.register_global_func(name, listen, override=True)
    try:
        record = capture.lookup(tvm.compile(ours("seen"), target=H200))
        assert record.source.endswith("// seen")
        assert len(seen) == 1
    finally:
        if before is not None:
            tvm_ffi.register_global_func(name, before, override=True)
        build.install()
