"""The hold of a register: by reference, and seen by no one but the compilers."""

import re

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tvm_hopper import capture, schedule as hs
from tvm_hopper.codegen_patches import hold as patch
from tvm_hopper.cuda_build.compilers import compile_source, with_nvrtc
from tvm_hopper.testing import workloads


def build(pending):
    """Build an epilogue that rounds right behind the last wait: the compiler moved it in front."""
    mod = workloads.matmul(100, 72, 200, out_dtype="float16", epilogue=("silu",))
    sch = s_tir.Schedule(mod)
    config = hs.MatmulConfig((64, 64, 64), stages=3, consumers=1, wgmma_pending=pending)
    hs.matmul(sch, "C", config)
    return tvm.compile(sch.mod, target="nvidia/nvidia-h200")


def test_groups_over_an_iteration_are_held():
    source = capture.lookup(build(1)).source
    assert 'asm volatile("" : "+f"(reg) :: "memory");' in source
    assert "(float& reg)" in source
    assert "@never exit" in source
    assert compile_source(source).log.count("C75") == 0
    assert tvm_hopper.verify(build(1), max_ctas=2).verdict == "clean"


def test_groups_of_one_iteration_need_none():
    source = capture.lookup(build(0)).source
    assert patch.NAME not in source
    assert patch.FENCE not in source


def test_registration_happens_once():
    patch.register()
    patch.register()


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32"])
def test_each_type_of_register_has_one(dtype):
    register = tvm.tirx.decl_buffer((4,), dtype, scope="local")
    call = patch.hold(tvm.tirx.BufferLoad(register, [0]))
    assert str(call.op.name) == f"tirx.{patch.NAME}_{dtype}"


def test_the_place_of_a_tile_of_any_rows_is_divided_out_once():
    """Not in each turn of the loads: the compiler moves no division out of a loop."""
    sch = s_tir.Schedule(workloads.matmul("m", 256, 256, "NT", "float16", "float16"))
    config = hs.MatmulConfig((64, 64, 64), raster=2, persistent=0)
    hs.matmul(sch, "C", config, rows=128)
    ex = tvm.compile(sch.mod, target="nvidia/nvidia-h200")
    ptx = with_nvrtc(capture.lookup(ex).source, "sm_90a", fast_math=False).assembly.decode()
    start, roles = ptx.split("griddepcontrol.wait")
    division = re.compile(r"\b(div|rem)\.")
    assert division.search(start)
    assert not division.search(roles)
