"""Kernels of TVM's own compile where pip's CUDA is the only one, by TVM's own function."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm.support import nvcc
from tvm.target import Target

from tvm_hopper import CompileError
from tvm_hopper.cuda_build import foreign, nvrtc, runtime, toolkits
from tvm_hopper.integration import foreign as behind
from tvm_hopper.reports import explanation
from tvm_hopper.requests import keys

from . import _programs

H200 = "nvidia/nvidia-h200"
needs_pip = pytest.mark.skipif(
    not all(map(foreign._folder_of, foreign.NEEDED)), reason="no CUDA headers at all"
)


@pytest.fixture
def no_toolkit(monkeypatch, tmp_path):
    """Hide the machine's CUDA toolkit from TVM; its callbacks are those of a fresh process."""
    before = tvm_ffi.get_global_func(behind.COMPILE)
    tvm_ffi.register_global_func(behind.COMPILE, nvcc.tvm_callback_cuda_compile, override=True)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE", raising=False)
    monkeypatch.setattr(foreign, "_compiled", type(foreign._compiled)())
    yield
    tvm_ffi.register_global_func(behind.COMPILE, before, override=True)


def text_of(name: str) -> str:
    func = _programs.add_one().mod["main"].with_attr("global_symbol", name)
    built = tvm.compile(tvm.IRModule({name: func}), H200)
    return str(built.mod.imports[0].inspect_source())


def compile_text(text: str):
    with Target(H200):
        return tvm_ffi.get_global_func(behind.COMPILE)(text)


@needs_pip
def test_pip_headers_are_enough(no_toolkit):
    text = text_of("f")
    with pytest.raises(RuntimeError, match="Cannot find CUDA headers"):
        compile_text(text)
    behind.install()
    assert bytes(compile_text(text))[:4] == b"\x7fELF"
    assert foreign.is_compiled_here(text)
    with pytest.raises(RuntimeError, match="NVRTC compilation failed"):
        compile_text("no kernel")
    assert not foreign.is_compiled_here("no kernel")


@needs_pip
def test_flags_are_tvms(no_toolkit, monkeypatch, tmp_path):
    asked, stock = [], nvrtc.nvrtcCompileProgram

    def spy(program, count, options):
        asked.append([x.decode() for x in options])
        return stock(program, count, options)

    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram", spy)
    monkeypatch.setenv("TVM_CUDA_PTXAS_REG_LEVEL", "5")
    behind.install()
    compile_text(text_of("f"))
    (options,) = asked
    assert {"--use_fast_math", "--gpu-architecture=sm_90a"} <= {*options}
    assert "--ptxas-options=--register-usage-level=5" in options
    folders = [x.removeprefix("-I") for x in options if x.startswith("-I")]
    assert folders
    assert not any(str(tmp_path) in x for x in folders)


def test_other_errors_are_passed_on(no_toolkit):
    def refuse(text):
        raise ValueError("not this kernel")

    tvm_ffi.register_global_func(behind.COMPILE, refuse, override=True)
    behind.install()
    with pytest.raises(ValueError, match="not this kernel"):
        compile_text("any")


def test_without_headers_the_error_says_what_to_install(no_toolkit, monkeypatch):
    monkeypatch.setattr(foreign, "include_folders", lambda major: [])
    behind.install()
    with pytest.raises(CompileError, match=r"found no CUDA headers \(Cannot .*pip install"):
        compile_text("any")
    assert toolkits.INSTALL in foreign.INSTALL


@needs_pip
def test_explain_tells(no_toolkit, plain_lowering):
    sch = _programs.add_one()
    sch.annotate(sch.get_sblock("B"), keys.ASYNC_COPY, "tma")
    functions = {"f": _programs.add_one().mod["main"], "g": sch.mod["main"]}
    mod = tvm.IRModule({k: v.with_attr("global_symbol", k) for k, v in functions.items()})
    built = tvm.compile(mod, H200)
    behind.install()
    texts = [str(x.inspect_source()) for x in built.mod.imports]
    (plain,) = (x for x in texts if "f_kernel" in x)
    assert not [*explanation._of_foreign(built)]
    compile_text(plain)
    (said,) = explanation._of_foreign(built)
    assert said == f"kernels of TVM's own: {foreign.COMPILED}"
    shown = explanation.Explanation((), (said,))
    assert said in str(shown)
    assert shown.as_dict()["foreign"] == [said]
    assert not [*explanation._of_foreign(sch)]


@pytest.mark.parametrize("has_driver", [False, True])
def test_the_runtime_is_loaded_where_there_is_a_driver(monkeypatch, has_driver):
    def load(name):
        if not has_driver:
            raise OSError(name)

    asked = []
    monkeypatch.setattr("tvm.base._LOADED_LIBS", {})
    monkeypatch.setattr(behind.ctypes, "CDLL", load)
    monkeypatch.setattr(runtime, "ensure", lambda: asked.append(True))
    behind.load_runtime()
    assert asked == [True] * has_driver
    monkeypatch.setattr("tvm.base._LOADED_LIBS", {"tvm_runtime_cuda": None})
    behind.load_runtime()
    assert len(asked) == has_driver
