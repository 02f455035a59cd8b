"""BoundRegisters: launch bounds of grids that are as large as all SMs have room for."""

from __future__ import annotations

from tests.transforms.scripts import parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.bound_registers import BoundRegisters, plan_bound

KERNEL = """
@T.prim_func(private=True, s_tir=True)
def func(Y: T.Buffer((264, 64), "float32")):
    for bx in T.thread_binding(264, thread="blockIdx.x"ASKED):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            BOUND
                Y[bx, tx] = T.float32(0)
"""
ASKED = ', annotations={"tvm_hopper.blocks_per_sm": 2}'


def test_what_a_thread_does_is_bound():
    before = parse(KERNEL, ("ASKED", ASKED), ("BOUND", "if True:"))
    (kernel,) = ir.kernels(run(before, BoundRegisters()))
    assert plan_bound(kernel) is None
    text = str(run(before, BoundRegisters()).script())
    assert 'T.attr(0, "tirx.launch_bounds_min_blocks_per_sm", 2)' in text
    assert 'blocks_per_sm": 2}' not in text


def test_others_stay():
    plain = parse(KERNEL, ("ASKED", ""), ("BOUND", "if True:"))
    assert run(plain, BoundRegisters()).body.same_as(plain.body)
