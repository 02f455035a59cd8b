"""Saved kernels: what a file holds, who may load it, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import struct
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tvm_hopper import HopperError, schedule as hs
from tvm_hopper.cuda_build import runtime
from tvm_hopper.saved import container, saving
from tvm_hopper.testing import workloads

from . import _programs

ROOT = Path(__file__).resolve().parents[2]
H200 = "nvidia/nvidia-h200"
NUMBERS = ["256", "192", "128"]
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="files are linked by g++")


@pytest.fixture(scope="module")
def built() -> tvm.runtime.Executable:
    sch = s_tir.Schedule(workloads.matmul(*map(int, NUMBERS)))
    hs.matmul(sch, "C")
    return tvm.compile(sch.mod["main"].with_attr("global_symbol", "product"), target=H200)


@pytest.fixture(scope="module")
def file(built, tmp_path_factory) -> Path:
    return tvm_hopper.save(built, tmp_path_factory.mktemp("saved") / "product.so")


def test_a_file_holds_machine_code_and_says_what_it_is(built, file) -> None:
    header = tvm_hopper.read_header(file)
    assert header.functions == ["product"]
    assert list(header.kernels) == ["product_kernel"]
    assert (header.arch, header.compute_capability, header.is_specific) == ("sm_90a", "9.0", True)
    assert header.report == str(tvm_hopper.explain(built))
    assert header.versions["tvm_ffi"].startswith("0.1.14")
    data = file.read_bytes()
    assert tvm_hopper.cubin(built) in data
    assert b"__global__" not in data


def test_it_loads_without_a_compiler_on_its_chip_alone(file, fresh) -> None:
    done = fresh(str(Path(__file__).with_name("_load_with_fakes.py")), str(file), "product")
    h200, mismatch, a100, b200, absent = done.stdout.splitlines()
    assert h200 == "NVIDIA H200: loaded"
    assert mismatch.startswith("Mismatched")  # the launch code checks its arguments
    code = "since it holds code for sm_90a; build it for that chip"
    assert a100.endswith(f"found NVIDIA A100-SXM4-80GB of compute capability 8.0; need 9.0, {code}")
    assert b200.endswith(f"found NVIDIA B200 of compute capability 10.0; need 9.0, {code}")
    assert absent == "saved file: found no function 'absent'; need product"


def test_a_model_is_a_file_too(fresh, tmp_path) -> None:
    """Its functions need a GPU; the check of the chip is before them."""
    from tvm import relax
    from tvm.relax.frontend import nn

    linear = nn.Linear(64, 64, bias=False, dtype="float16")
    mod, _ = linear.export_tvm({"forward": {"x": nn.spec.Tensor(["n", 64], "float16")}})
    path = tmp_path / "model"  # any name will do
    tvm_hopper.save(relax.build(mod, target=H200, relax_pipeline="tvm_hopper"), path)
    header = tvm_hopper.read_header(path)
    assert (header.kind, header.functions) == ("model", ["forward"])
    assert json.loads(header.report)["functions"][0]["computed_by"] == "tvm_hopper"
    assert b"__global__" not in path.read_bytes()
    done = fresh(str(Path(__file__).with_name("_load_with_fakes.py")), str(path), "forward")
    loaded, called, a100, b200 = done.stdout.splitlines()[:4]
    assert loaded == "NVIDIA H200: loaded"
    assert "Invoking function forward expects 2 arguments" in called
    assert "found NVIDIA A100" in a100
    assert "found NVIDIA B200" in b200


def test_kernels_of_tvms_own_are_compiled_too(tmp_path) -> None:
    sch = s_tir.Schedule(workloads.matmul(64, 64, 64))
    hs.matmul(sch, "C")
    plain = _programs.add_one().mod["main"].with_attr("global_symbol", "plain")
    mod = tvm.IRModule({"ours": sch.mod["main"].with_attr("global_symbol", "ours"), "plain": plain})
    path = tvm_hopper.save(tvm.compile(mod, target=H200), tmp_path / "both.so")
    data = path.read_bytes()
    assert b"__global__" not in data
    assert data.count(b"\x7fELF") >= 3  # the library, and two cubins
    assert tvm_hopper.read_header(path).functions == ["ours", "plain"]


def forged(header: object, size: int | None = None) -> bytes:
    """Make a file with a right digest and any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if size is None else size
    return text + container.FOOTER.pack(size, sha256(text).digest(), container.MAGIC)


GOOD = dataclasses.asdict(
    container.Header("kernels", "sm_90a", "9.0", True, ["f"], {"f_kernel": 32}, {}, "")
)
DAMAGED = {
    "nothing": (lambda _: b"", "no footer"),
    "a footer's part": (lambda x: x[-20:], "no footer"),
    "cut off": (lambda x: x[:-1], "no footer"),
    "cut at the front": (lambda x: x[1000:], "other bytes than its digest says"),
    "one bit": (lambda x: x[:3000] + bytes([x[3000] ^ 1]) + x[3001:], "other bytes"),
    "a plain library": (lambda x: x[: x.rindex(b'{"kind"')], "no footer"),
    "a header beyond the file": (lambda _: forged(GOOD, 1 << 20), "a header of 1048576 bytes in"),
    "a header beyond memory": (lambda _: forged(GOOD, 2**64 - 1), "a header of 18446744073709"),
    "no JSON": (lambda _: forged(b"\xff{"), "a header that is none (UnicodeDecodeError)"),
    "a list": (lambda _: forged([1]), "a header that is none (TypeError)"),
    "deep": (lambda _: forged(b"[" * 100_000), "a header that is none (RecursionError)"),
    "another format": (lambda _: forged({"format": 2}), "format 2; this version reads 1"),
    "another type": (lambda _: forged({**GOOD, "arch": 9}), "arch = '9' in its header"),
    "a missing field": (lambda _: forged({"format": 1}), "kind = 'None' in its header"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_one_error_before_anything_runs(file, tmp_path, monkeypatch, name) -> None:
    from tvm_hopper.cuda_build import runtime

    monkeypatch.setattr(runtime, "ensure_alone", lambda: pytest.fail("went on to load it"))
    change, found = DAMAGED[name]
    other = tmp_path / "other.so"
    other.write_bytes(change(file.read_bytes()))
    for use in (tvm_hopper.load, tvm_hopper.read_header):
        with pytest.raises(HopperError) as error:
            use(other)
        assert str(error.value).startswith(f"saved file {other}: found ")
        assert found in str(error.value)
        assert str(error.value).endswith("need one that tvm_hopper.save wrote; save it again")


def test_a_machine_without_a_driver(file, monkeypatch):
    monkeypatch.setattr(runtime, "ensure_alone", lambda: False)
    with pytest.raises(HopperError, match=r"found no CUDA driver, .*; need all to load it"):
        tvm_hopper.load(file)


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(HopperError, match="found no file to read \\(No such file"):
        tvm_hopper.load(tmp_path / "absent.so")


def test_what_cannot_be_saved(built, tmp_path, monkeypatch) -> None:
    from tvm.support import cc

    with pytest.raises(HopperError, match="found no place to write at \\(No such file"):
        tvm_hopper.save(built, tmp_path / "absent" / "x.so")
    monkeypatch.setattr(saving, "SOURCE", Path(__file__))
    with pytest.raises(HopperError, match=r"found '.*error.*' of "):
        tvm_hopper.save(built, tmp_path / "x.so")
    monkeypatch.setattr(cc, "get_cc", lambda: None)
    with pytest.raises(HopperError, match=r"x\.so: found no C compiler on PATH; need one to link"):
        tvm_hopper.save(built, tmp_path / "x.so")
    with pytest.raises(HopperError, match="packed in an unknown way"):
        saving.with_machine_code(packed(b"cuda", b"?"), str.encode)
    assert not list(tmp_path.iterdir())


def test_several_chips_are_refused(tmp_path) -> None:
    from tvm_hopper.cuda_build import records
    from tvm_hopper.facts.arch import SM_80

    sch = s_tir.Schedule(workloads.matmul(64, 64, 64))
    hs.matmul(sch, "C")
    two = tvm.compile(sch.mod, target=H200)
    (record,) = records.lookup_all(two)
    other = dataclasses.replace(record, arch=SM_80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "lookup_all", lambda _: [record, other])
        with pytest.raises(HopperError, match="found kernels for sm_80, sm_90a; need those of one"):
            tvm_hopper.save(two, tmp_path / "x.so")


def packed(kind: bytes, code: bytes) -> bytes:
    """Pack one CUDA module with one kernel as TVM does."""

    def string(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    module = string(kind) + struct.pack("<Q", 0) + (string(code) if code != b"?" else b"")
    tree = struct.pack("<QQQQQ", 3, 0, 1, 1, 1) + struct.pack("<Q", 1)
    return string(tree + string(b"_lib") + string(b"cuda") + string(module))


@pytest.mark.parametrize(("image", "form"), [(b"\x7fELF.", b"cubin"), (b"// PTX", b"ptx")])
def test_text_becomes_code_and_code_stays(image: bytes, form: bytes) -> None:
    new = saving.with_machine_code(packed(b"cuda", b"text"), {"text": image}.__getitem__)
    assert new == packed(form, image)
    assert saving.with_machine_code(new, lambda _: pytest.fail("compiled")) == new


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> str:
    """Build the C++ program of the examples."""
    path = tmp_path_factory.mktemp("cpp") / "run_saved"
    folder = ROOT / "examples" / "cpp"
    command = ["sh", str(folder / "build.sh"), str(folder / "run_saved.cc"), str(path)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHON": sys.executable})
    return str(path)


def test_the_program_says_what_is_missing(program, file) -> None:
    assert subprocess.run([program], capture_output=True).returncode == 2
    if tvm.cuda(0).exist:
        pytest.skip("nothing is missing here")
    done = subprocess.run([program, file, "product", *NUMBERS], capture_output=True, text=True)
    assert done.returncode == 1
    assert "libcuda" in done.stderr


@pytest.mark.gpu
def test_the_program_runs_the_kernel(program, file) -> None:
    done = subprocess.run([program, file, "product", *NUMBERS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "49152 elements are right\n"), done.stderr
