"""The build step of our kernels, with CUDA's runtime and without it, and foreign ones in it.

`with_runtime` stands in for the runtime: TVM hands the text to a factory, which asks the compile
callback for machine code before it makes a module, as TVM's own does.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tvm
import tvm_ffi
from tvm.target import Target
from tvm.tirx.build import codegen_build, split_host_device_mods

import tvm_hopper
from tvm_hopper import CompileError, HopperError, VerifyError, capture, pipeline
from tvm_hopper.cuda_build import build, compilers
from tvm_hopper.requests import keys

from . import _programs

H200 = "nvidia/nvidia-h200"
FACTORY = "ffi.Module.create.cuda"

pytestmark = pytest.mark.usefixtures("plain_lowering")


def ours(name: str = "main", threads: int = 48, **attributes: object) -> tvm.tirx.PrimFunc:
    sch = _programs.add_one(threads)
    sch.annotate(sch.get_sblock("B"), keys.ASYNC_COPY, "tma")
    return sch.mod["main"].with_attr({"global_symbol": name, **attributes})


def foreign(name: str = "main", threads: int = 48) -> tvm.tirx.PrimFunc:
    return _programs.add_one(threads).mod["main"].with_attr("global_symbol", name)


@pytest.fixture
def globals_put_back() -> Iterator[None]:
    """Put TVM's functions back that a test replaces."""
    names = (build.BUILD, build.POSTPROC, build.COMPILE, FACTORY)
    before = {name: tvm_ffi.get_global_func(name, allow_missing=True) for name in names}
    yield
    for name, function in before.items():
        if function is not None:
            tvm_ffi.register_global_func(name, function, override=True)
        elif tvm_ffi.get_global_func(name, allow_missing=True) is not None:
            tvm_ffi.remove_global_func(name)


@pytest.fixture
def stock_compiler(globals_put_back: None) -> list[str]:
    """Stand in for TVM's compile callback: list the texts that it is asked for."""
    seen: list[str] = []

    def compile_cuda(code: str) -> bytes:
        seen.append(str(code))
        return b"stock"

    tvm_ffi.register_global_func(build.COMPILE, compile_cuda, override=True)
    return seen


@pytest.fixture
def with_runtime(stock_compiler: list[str]) -> dict[str, bytes]:
    """Stand in for CUDA's runtime: machine code by the text that it was made of."""
    loaded: dict[str, bytes] = {}

    def create(code: bytes, fmt: str, functions: object, sources: object) -> tvm.runtime.Module:
        text = bytes(code).decode()
        loaded[text] = bytes(tvm_ffi.get_global_func(build.COMPILE)(text))
        return tvm.get_global_func("runtime.SourceModuleCreate")(text, fmt)

    tvm_ffi.register_global_func(FACTORY, create, override=True)
    return loaded


def test_the_runtime_gets_the_cubin_that_was_judged(with_runtime, stock_compiler) -> None:
    tvm.compile(tvm.IRModule({"main": ours()}), target=H200)
    ((text, cubin),) = with_runtime.items()
    record = capture.find(text)
    assert record.kernels == ("main_kernel",)
    assert cubin == record.compile().cubin
    assert cubin[:4] == b"\x7fELF"
    assert stock_compiler == []


def test_only_our_part_of_a_module_is_compiled_by_us(with_runtime, stock_compiler) -> None:
    alone = tvm.compile(tvm.IRModule({"f": foreign("f")}), target=H200)
    tvm.compile(tvm.IRModule({"f": foreign("f"), "g": ours("g")}), target=H200)
    text = alone.mod.imports[0].inspect_source()
    assert stock_compiler == [text, text]
    assert with_runtime[text] == b"stock"
    (other,) = set(with_runtime) - {text}
    assert capture.find(other).kernels == ("g_kernel",)


def test_a_foreign_module_reaches_tvm_as_it_is(globals_put_back) -> None:
    seen: list[tvm.IRModule] = []
    stock = tvm_ffi.get_global_func(build.BUILD)

    def spy(mod: tvm.IRModule, target: Target) -> tvm.runtime.Module:
        seen.append(mod)
        return stock(mod, target)

    tvm_ffi.register_global_func(build.BUILD, spy, override=True)
    tvm.compile(tvm.IRModule({"f": foreign("f"), "g": ours("g")}), target=H200)
    attributes = {name: mod.attrs for mod in seen for name in map(str, mod.get_global_vars())}
    assert len(seen) == len(attributes) == 2
    (theirs,) = (mod for mod in seen if "f_kernel" in [v.name_hint for v in mod.functions])
    assert not theirs.attrs


def test_a_foreign_build_inside_of_ours_stays_foreign(with_runtime, stock_compiler) -> None:
    """A listener to our text may build a kernel of its own."""
    inner: list[str] = []

    def listen(code: str, _target: object) -> str:
        if not inner:
            inner.append("begun")
            built = tvm.compile(tvm.IRModule({"f": foreign("f")}), target=H200)
            inner.append(built.mod.imports[0].inspect_source())
        return code

    tvm_ffi.register_global_func(build.POSTPROC, listen, override=True)
    tvm.compile(tvm.IRModule({"g": ours("g")}), target=H200)
    assert stock_compiler == [inner[1]]
    (text,) = set(with_runtime) - {inner[1]}
    assert capture.find(text).kernels == ("g_kernel",)
    assert "tvm_hopper" not in inner[1]


def test_a_listener_between_two_of_ours_is_part_of_the_record(with_runtime) -> None:
    tvm.compile(tvm.IRModule({"main": ours()}), target=H200)
    first = {n: tvm_ffi.get_global_func(n) for n in (build.BUILD, build.POSTPROC, build.COMPILE)}
    calls = []

    def listen(code: str, target: object) -> str:
        return first[build.POSTPROC](code, target) + "\n// theirs"

    def build_cuda(mod: tvm.IRModule, target: Target) -> tvm.runtime.Module:
        calls.append(mod)
        return first[build.BUILD](mod, target)

    tvm_ffi.register_global_func(build.POSTPROC, listen, override=True)
    tvm_ffi.register_global_func(build.BUILD, build_cuda, override=True)
    tvm.compile(tvm.IRModule({"main": ours(threads=80)}), target=H200)
    source = list(with_runtime)[-1]
    assert capture.find(source).kernels == ("main_kernel",)
    assert source.endswith("// theirs")
    assert source.count("// tvm_hopper.compiler=") == 1
    assert len(calls) == 1


def test_errors_keep_their_class_through_tvm(with_runtime, monkeypatch) -> None:
    monkeypatch.setattr(compilers, "header_folders", tuple)
    with pytest.raises(CompileError, match=r"need CUDA's headers"):
        tvm.compile(tvm.IRModule({"main": ours(threads=24)}), target=H200)
    assert build._current() is None  # the next build of this thread begins anew


def test_a_bad_log_is_an_error_of_tvm_compile(with_runtime, monkeypatch) -> None:
    def bad(source: str, arch: str, fast_math: bool) -> compilers.Output:
        return compilers.Output(b"", b"", "ptxas info : (C7510) wgmma serialized")

    monkeypatch.setitem(compilers._COMPILERS, "nvrtc", bad)
    with pytest.raises(CompileError, match="found C7510 wgmma serialized"):
        tvm.compile(tvm.IRModule({"main": ours(threads=40)}), target=H200)
    let_pass = ours(threads=40, **{keys.CHECKS: keys.SYNCHRONIZATION})
    tvm.compile(tvm.IRModule({"main": let_pass}), target=H200)


def test_checks_come_before_the_text(with_runtime, monkeypatch) -> None:
    def refuse(kernel: tvm.tirx.PrimFunc, host: tvm.tirx.PrimFunc | None) -> None:
        raise VerifyError("main_kernel: found a race")

    monkeypatch.setattr(pipeline.passes, "final_checks", lambda: [refuse])
    with pytest.raises(VerifyError, match="found a race"):
        tvm.compile(tvm.IRModule({"main": ours()}), target=H200)
    assert with_runtime == {}


def test_kernels_that_come_without_their_host_half_are_judged_all_the_same(
    stock_compiler, monkeypatch
) -> None:
    """Another road than `tirx.build` runs its own finalisers."""
    seen = []
    monkeypatch.setattr(pipeline.passes, "final_checks", lambda: [lambda *pair: seen.append(pair)])
    build.install()
    lowered = pipeline.lower(tvm.IRModule({"main": ours()}), H200)
    _, devices = split_host_device_mods(lowered)
    finalize = pipeline.stock_finalizers()[1]
    ((target, device),) = devices.items()
    with tvm.transform.PassContext(config={keys.FAST_MATH: True}):
        module = codegen_build(finalize()(device), target)
    record = capture.lookup(module)
    assert [host for _, host in seen] == [None]
    assert (record.fast_math, len(record.host.functions)) == (True, 0)
    assert stock_compiler == []
    with pytest.raises(HopperError, match="found no kernel of ours"):
        tvm_hopper.explain(module)


def test_the_record_holds_the_kernels_alone() -> None:
    record = capture.lookup(tvm.compile(tvm.IRModule({"main": ours()}), target=H200))
    assert not record.device.attrs
    assert set(record.host.functions) != set()


def test_a_foreign_kernel_without_a_compiler_is_refused(with_runtime) -> None:
    tvm_ffi.remove_global_func(build.COMPILE)
    build.install()
    with pytest.raises(CompileError, match=r"found no compiler; need one for a foreign kernel"):
        tvm.compile(tvm.IRModule({"f": foreign()}), target=H200)


def test_workers_of_a_pool_build_as_this_process_does(fresh) -> None:
    pytest.importorskip("cloudpickle")
    pytest.importorskip("psutil")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "def build():\n"
        "    import tvm\n"
        "    from tvm.tirx.compilation_pipeline import PIPELINE_MAP\n"
        "    assert hasattr(PIPELINE_MAP['s_tir'], 'gate_of')\n"
        "    import tvm_hopper\n"
        "    from tvm import s_tir\n"
        "    from tvm_hopper import schedule as hs\n"
        "    from tvm_hopper.testing import workloads\n"
        "    sch = s_tir.Schedule(workloads.matmul(256, 256, 64))\n"
        "    hs.matmul(sch, 'C')\n"
        "    built = tvm.compile(sch.mod, target='nvidia/nvidia-h200')\n"
        "    return built.mod.imports[0].inspect_source(), len(tvm_hopper.cubin(built))\n"
        "from tvm.support.popen_pool import PopenWorker\n"
        "worker = PopenWorker()\n"
        "worker.send(build)\n"
        "assert worker.recv() == build()\n"
        "worker.kill()\n"
    )
    fresh("-W", "ignore", "-c", code, str(_programs.__file__))
