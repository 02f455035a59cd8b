"""`tvm_hopper.sass`: the machine code of a kernel, in words."""

import pytest
import tvm

import tvm_hopper
from tvm_hopper.cuda_build import disassembler
from tvm_hopper.testing import copies
from tvm_hopper.testing.copies import Route


@pytest.fixture(scope="module")
def executable():
    sch = copies.schedule(copies.copy(256, 256), Route(store=None))
    return tvm.compile(sch.mod, target="nvidia/nvidia-h200")


def test_the_instructions_of_a_kernel(executable):
    text = tvm_hopper.sass(executable)
    assert "UTMALDG.2D" in text
    assert "HGMMA" not in text


def test_without_the_tool_it_is_one_error(executable, monkeypatch):
    monkeypatch.setattr(disassembler, "pip_folders", lambda *_: [])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        tvm_hopper.HopperError, match=r"found no nvdisasm; .* pip install nvidia-cuda-nvdisasm"
    ):
        tvm_hopper.sass(executable)
