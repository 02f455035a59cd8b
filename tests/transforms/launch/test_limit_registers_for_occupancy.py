"""LimitRegistersForOccupancy: registers for as many thread blocks as are to share an SM."""

from __future__ import annotations

import tvm
from tvm import s_tir

from tests.transforms.scripts import check, parse, run
from tvm_hopper import schedule as hs
from tvm_hopper.testing import memory_bound
from tvm_hopper.transforms.launch.limit_registers_for_occupancy import LimitRegistersForOccupancy

BEFORE = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((8, 256), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x", annotations={"tvm_hopper.blocks_per_sm": 4}):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("init"):
                T.reads()
                T.writes(X[bx, tx])
                X[bx, tx] = T.float32(0)
"""
AFTER = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((8, 256), "float32")):
    for bx in T.thread_binding(8, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("init"):
                T.reads()
                T.writes(X[bx, tx])
                with T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", 4):
                    X[bx, tx] = T.float32(0)
"""


def test_the_kernel_is_bounded():
    check(run(parse(BEFORE), LimitRegistersForOccupancy()), parse(AFTER))


def test_others_stay():
    check(run(parse(AFTER), LimitRegistersForOccupancy()), parse(AFTER))


def test_the_compiler_is_told():
    sch = s_tir.Schedule(memory_bound.softmax(1 << 16, 1024))
    hs.row_reduction(sch, config=hs.RowReductionConfig(threads=128, blocks=6))
    text = tvm.compile(sch.mod, target="nvidia/nvidia-h200").mod.imports[0].inspect_source()
    assert "__launch_bounds__(128, 6)" in text
