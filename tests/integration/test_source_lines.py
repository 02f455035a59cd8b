"""Kernels that name lines of their TIR: the same instructions, each at its statement."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tvm
from tvm import s_tir
from tvm.ir.transform import PassContext

import tvm_hopper
from tvm_hopper import OptionError, capture, schedule as hs
from tvm_hopper.cuda_build.disassembler import find_disassembler
from tvm_hopper.requests import keys
from tvm_hopper.testing import memory_bound, workloads

H200 = "nvidia/nvidia-h200"


def product() -> tvm.IRModule:
    sch = s_tir.Schedule(workloads.matmul("m", 512, 256))
    hs.matmul(sch, "C")
    return sch.mod


def norm() -> tvm.IRModule:
    sch = s_tir.Schedule(memory_bound.rms_norm(512, 4096))
    hs.row_reduction(sch)
    return sch.mod


def build(mod: tvm.IRModule, folder: object) -> tvm.runtime.Executable:
    with PassContext(config={keys.LINE_INFO: str(folder)}):
        return tvm.compile(mod, target=H200)


def pairs(source: str) -> list[tuple[str, str]]:
    """Return each line of CUDA text that has a TIR line, and that."""
    lines = source.splitlines()
    marks = [(i, re.match(r'#line (\d+) "(.*)"$', x)) for i, x in enumerate(lines)]
    files = {mark[2]: Path(mark[2]).read_text().splitlines() for _, mark in marks if mark}
    return [
        (lines[i + 1].strip(), files[mark[2]][int(mark[1]) - 1].strip())
        for i, mark in marks
        if mark
    ]


@pytest.mark.parametrize("make", [product, norm])
def test_each_statement_is_at_its_own(make, tmp_path) -> None:
    found = pairs(capture.lookup(build(make(), tmp_path / "lines")).source)
    loops = lets = waits = 0
    for cuda, tir in found:
        if loop := re.match(r"for \(\w+ (\w+?)(?:_\d+)? = ", cuda):
            assert re.match(r"for ", tir), (cuda, tir)
            assert loop[1].split("_")[0] in tir
            loops += 1
        elif let := re.match(r"[\w:]+ (cse_\w+|descriptor_\w+) = ", cuda):
            assert tir.startswith(f"{let[1]}: T.let"), (cuda, tir)
            lets += 1
        elif "mbarrier_wait" in cuda:
            assert tir.startswith("T.cuda.mbarrier_wait"), (cuda, tir)
            waits += 1
    assert loops + lets >= 3
    assert waits >= 2 or make is norm


def instructions(executable: object) -> list[str]:
    return re.findall(r"/\*[0-9a-f]{4}\*/\s+(.*?)\s*/\*", tvm_hopper.sass(executable))


@pytest.mark.skipif(find_disassembler() is None, reason="no nvdisasm")
def test_the_instructions_are_the_same(tmp_path) -> None:
    mod = product()
    plain, lined = tvm.compile(mod, target=H200), build(mod, tmp_path)
    assert instructions(plain) == instructions(lined)
    assert len(instructions(plain)) > 100
    name = next(tmp_path.iterdir()).name.encode()
    assert name in tvm_hopper.cubin(lined)
    assert b"debug_line" in tvm_hopper.cubin(lined)
    assert b"debug_line" not in tvm_hopper.cubin(plain)


def test_a_folder_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"line_info = '.*/file/below', where nothing is written"):
        build(product(), tmp_path / "file" / "below")
    with pytest.raises(OptionError, match=r"line_info = 'lines'; need an absolute path"):
        build(product(), "lines")
