"""Kernels that are not ours come out byte for byte as they do without the package."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import tvm

from . import _programs

PROGRAMS_PY = str(Path(__file__).with_name("_programs.py"))


@pytest.fixture(scope="module")
def texts(fresh, tmp_path_factory) -> dict[str, dict[str, str]]:
    folder = tmp_path_factory.mktemp("texts")
    result = {}
    for name, arguments, env in (
        ("without", ["--without"], {}),
        ("with", ["--ours-first"], {"PYTHONHASHSEED": "1"}),
        ("off", ["--one"], {"TVM_HOPPER_AUTOLOAD": "0"}),
    ):
        out = folder / f"{name}.json"
        fresh(PROGRAMS_PY, str(out), *arguments, TVM_CUDA_COMPILE_MODE="nvcc", **env)
        result[name] = json.loads(out.read_text())
    return result


def test_the_gate_was_there_only_where_it_should(texts) -> None:
    assert {n: t["gate"] for n, t in texts.items()} == {
        "without": "False",
        "with": "True",
        "off": "False",
    }
    assert texts["without"]["loaded"] == "False"


def _stable(text: str) -> str:
    """Take out the addresses that TVM prints as names of LLVM's alias classes."""
    return re.sub(r'!"0x[0-9a-f]+"', '!"address"', text)


@pytest.mark.parametrize("program", sorted(_programs.PROGRAMS))
def test_source_is_identical(texts, program: str) -> None:
    expected = texts["without"][program]
    assert len(expected) > 500
    for name in ("with", "off"):
        found = texts[name].get(program, expected)
        assert _stable(found) == _stable(expected), f"{program}, {name}"


@pytest.mark.skipif(not shutil.which("nvcc"), reason="machine code needs nvcc")
@pytest.mark.parametrize("program", _programs.CUBINS)
def test_machine_code_is_identical(texts, program: str) -> None:
    hashes = {name: texts[name][f"{program}_cubin"] for name in ("without", "with")}
    assert len(set(hashes.values())) == 1, hashes


def test_async_programs_are_asynchronous(texts) -> None:
    for name in ("sm80_async", "sm90_async"):
        assert "cp.async" in texts["without"][name]
    for name in ("sm80_sync", "sm90_sync"):
        assert "cp.async" not in texts["without"][name]


def _named(name: str, annotate: bool) -> tvm.tirx.PrimFunc:
    sch = _programs.add_one()
    if annotate:
        sch.annotate(sch.get_sblock("B"), "tvm_hopper.async_copy", "tma")
    return sch.mod["main"].with_attr("global_symbol", name)


def test_neighbours_of_our_kernel_are_compiled_apart(plain_lowering) -> None:
    alone = tvm.compile(tvm.IRModule({"f": _named("f", False)}), "nvidia/nvidia-h200")
    mixed = tvm.compile(
        tvm.IRModule({"f": _named("f", False), "g": _named("g", True)}), "nvidia/nvidia-h200"
    )
    texts = [module.inspect_source() for module in mixed.mod.imports]
    assert len(texts) == 2
    assert alone.mod.imports[0].inspect_source() in texts
    (ours,) = (text for text in texts if "g_kernel" in text)
    assert "f_kernel" not in ours
