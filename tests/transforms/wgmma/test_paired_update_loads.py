"""Fragment loops of an update in place: its old pair is loaded at once, before it is stored."""

import re

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tvm_hopper import capture, schedule as hs
from tvm_hopper.cuda_build.compilers import compile_source
from tvm_hopper.testing.forms import FORMS


def build(form, shape, config=None):
    sch = s_tir.Schedule(FORMS[form](*shape, "float16"))
    hs.matmul(sch, "C", config)
    return tvm.compile(sch.mod, target="nvidia/nvidia-h200")


def text(executable):
    return capture.lookup(executable).source.split('extern "C" __global__')[-1]


def test_a_pair_is_loaded_and_stored_at_once():
    source = text(build("beta", (128, 128, 128)))
    assert "*(float2*)(D_old_ptr + 0) = *(float2*)(D_ptr" in source
    assert "D_old_ptr[0]" in source
    assert "D_old_ptr[1]" in source


def test_odd_rows_are_updated_one_by_one():
    source = text(build("beta", (128, 129, 128)))
    assert not re.search(r"\bfloat2\b", source)
    assert "D_old_ptr" not in source


@pytest.mark.parametrize("shape", [(100, 104, 72), (456, 328, 392)], ids=["once", "loop"])
@pytest.mark.parametrize("form", ["beta", "in_place"])
def test_the_accumulator_stays_in_registers(form, shape):
    result = compile_source(capture.lookup(build(form, shape)).source)
    assert " 0 bytes stack frame" in result.log


def test_nothing_is_reported_as_slow():
    assert tvm_hopper.explain(build("beta", (128, 128, 128))).kernels[0].fallbacks == ()
