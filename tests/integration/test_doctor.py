"""The doctor names what is missing, and the command that mends it."""

from __future__ import annotations

import importlib.metadata
import json

from tvm_hopper import cli
from tvm_hopper.cuda_build import compilers, nvrtc, runtime
from tvm_hopper.reports import doctor
from tvm_hopper.reports.doctor import MISSING, OK, OPTIONAL


def test_every_row_that_is_not_ok_says_what_mends_it() -> None:
    rows = list(doctor.rows())
    assert len(rows) == len(doctor.CHECKS)
    assert len({row.what for row in rows}) == len(rows)
    for row in rows:
        assert row.state in (OK, MISSING, OPTIONAL)
        assert row.found
        assert bool(row.remedy) is (row.state != OK), row


def test_this_machine_can_lower_and_compile() -> None:
    """What the tests need, the doctor must find."""
    state = {row.what: row.state for row in doctor.rows()}
    for what in ("Python", "apache-tvm", "apache-tvm-ffi", "gate in the default pipeline"):
        assert state[what] == OK
    assert state["NVRTC"] == OK
    assert state["CUDA headers"] == OK


def test_the_command_prints_a_table(capsys) -> None:
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "apache-tvm-ffi" in out
    assert "ready to schedule, lower, simulate" in out


def test_the_command_prints_json(capsys) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    assert {row["what"] for row in json.loads(capsys.readouterr().out)} > {"NVRTC", "nvcc"}


def test_the_report_has_versions_checks_environment_and_options(
    capsys, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("TVM_HOPPER_VERIFY", "1")
    path = tmp_path / "report.txt"
    assert cli.main(["doctor", "--report", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    text = path.read_text()
    for line in ("apache-tvm 0.27", "NVRTC: ok", "TVM_HOPPER_VERIFY=1", "tvm_hopper.strict = "):
        assert line in text


def test_something_missing_is_an_exit_code(capsys, monkeypatch) -> None:
    monkeypatch.setattr(
        doctor, "CHECKS", (lambda: doctor.Row("soap", MISSING, "none", "buy soap"),)
    )
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "buy soap" in out
    assert "missing: soap" in out


def test_ffi_of_another_version(monkeypatch) -> None:
    for version, state in (("0.1.15.post2", OPTIONAL), ("0.1.16", MISSING)):
        monkeypatch.setattr(importlib.metadata, "version", lambda _, version=version: version)
        row = doctor.check_ffi()
        assert (row.state, row.found) == (state, version)
        assert "apache-tvm-ffi>=0.1.14" in row.remedy
        assert doctor.check_tvm().state == MISSING


def test_python_too_new(monkeypatch) -> None:
    monkeypatch.setattr(doctor.sys, "version_info", (3, 14, 0))
    assert doctor.check_python().state == MISSING


def test_no_nvrtc(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc, "library", nvrtc.library.__wrapped__)
    monkeypatch.setattr(nvrtc, "MAJORS", ())
    row = doctor.check_nvrtc()
    assert row.state == MISSING
    assert "nvidia-cuda-nvrtc>=13.0" in row.remedy
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    assert "Linux" in doctor.check_nvrtc().remedy


def test_an_nvrtc_newer_than_the_driver(monkeypatch) -> None:
    """The driver compiles PTX of its own version and older; machine code of sm_90a it loads."""
    assert doctor.check_nvrtc().state == OK
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 5))
    monkeypatch.setattr(doctor, "_driver_version", lambda: (13, 1))
    row = doctor.check_nvrtc()
    assert (row.state, row.found[:4]) == (OPTIONAL, "13.5")
    assert "nvidia-cuda-nvrtc==13.1.*" in row.remedy


def test_no_headers(monkeypatch) -> None:
    monkeypatch.setattr(compilers, "header_folders", tuple)
    assert doctor.check_headers().state == MISSING


def test_no_tools_on_path(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert doctor.check_nvcc().state == OPTIONAL
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)
    assert doctor.check_disassembler().state == OPTIONAL
    row = doctor.check_extras()
    assert (row.state, row.found) == (OPTIONAL, "without cloudpickle, psutil, tornado")


def test_no_cuda_libraries(monkeypatch) -> None:
    monkeypatch.setattr(runtime, "loadable", lambda _: False)
    monkeypatch.setattr(runtime, "is_loaded", lambda: False)
    assert runtime.ensure() is False
    assert doctor.check_gpu().state == OPTIONAL
    assert doctor.check_cudart().found.endswith("libcudart.so.13")  # pip's
    monkeypatch.setattr(runtime, "pip_library", lambda _: None)
    assert doctor.check_cudart().state == OPTIONAL


def test_a_driver_without_cudart_is_not_enough(monkeypatch) -> None:
    monkeypatch.setattr(runtime, "is_loaded", lambda: False)
    monkeypatch.setattr(runtime, "pip_library", lambda _: None)
    monkeypatch.setattr(runtime, "loadable", lambda name: "libcuda." in str(name))
    assert runtime.ensure() is False


def test_a_runtime_that_does_not_load_is_not_there(monkeypatch) -> None:
    import tvm_ffi.libinfo

    def fail(**_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(runtime, "is_loaded", lambda: False)
    monkeypatch.setattr(runtime, "loadable", lambda _: True)
    monkeypatch.setattr(tvm_ffi.libinfo, "load_lib_ctypes", fail)
    assert runtime.ensure() is False


def test_no_gate(monkeypatch) -> None:
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP

    stock = PIPELINE_MAP["s_tir"]
    monkeypatch.setitem(PIPELINE_MAP, "s_tir", stock.gate_of)
    monkeypatch.setenv("TVM_HOPPER_AUTOLOAD", "0")
    row = doctor.check_gate()
    assert row.state == MISSING
    assert "TVM_HOPPER_AUTOLOAD=0" in row.found


def test_no_keys_in_the_pass_context(monkeypatch) -> None:
    from tvm.ir.transform import PassContext

    assert doctor.check_config_keys().state == OK
    monkeypatch.setattr(PassContext, "__init__", PassContext.__init__.gate_of)
    row = doctor.check_config_keys()
    assert (row.state, row.found) == (MISSING, "not taken")
    assert "import tvm_hopper" in row.remedy


def test_tvm_is_not_installed(monkeypatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert (doctor.check_tvm().state, doctor.check_tvm().found) == (MISSING, "none")
    assert doctor.check_ffi().found == "none"


def test_versions_that_crash_are_a_row(monkeypatch) -> None:
    import tvm_ffi

    monkeypatch.setattr(tvm_ffi, "__version__", "0.1.16")
    row = doctor.check_gate()
    assert (row.state, row.found) == (MISSING, "tvm_hopper: found apache-tvm-ffi 0.1.16")
    assert "pip install" in row.remedy
