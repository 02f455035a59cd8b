"""Copies that threads make after all: each element once, also where run time knows how many."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.transforms.scripts import parse
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import simulate
from tvm_hopper.transforms.copies.thread_copies import deal_out

KERNEL = """
def func(N: T.Buffer((4,), "int32"), A: T.Buffer((64, 8, 16), "float32")):
    for bx in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("kernel"):
                tile = T.sblock_alloc_buffer((64, 8, 16), scope="shared.dyn")
                for i, j, k in T.grid(EXTENTS):
                    with T.sblock("copy", async_copy="none"):
                        tile[i, j, k] = A[i, j, k]
"""


@pytest.mark.parametrize(
    ("extents", "around", "turns", "bound"),
    [
        ("4, 8, 16", [], "4", ""),
        ("3, 8, 15", [], "3", "turn * 128 + tx < 360"),
        ("N[bx], 8, 16", [], "N[bx]", "turn * 128 + tx < N[bx] * 128"),
        ("4, N[bx], 16", ["4"], "(N[bx] * 16 + 127) // 128", "turn * 128 + tx < N[bx] * 16"),
        ("N[0], N[1], N[2]", ["N[0]", "N[1]"], "(N[2] + 127) // 128", "turn * 128 + tx < N[2]"),
    ],
)
def test_loops_of_a_copy(extents, around, turns, bound):
    """All are numbered together that have static extents, but for the first of them."""
    kernel = ir.kernels(parse(KERNEL, ("EXTENTS", extents)))[0]
    nest = next(x for x in ir.find_all(kernel, ir.For) if x.loop_var.name == "i")
    dealt = deal_out(kernel, nest)
    *outer, turn = [str(x.extent) for x in ir.find_all(dealt, ir.For)]
    assert (outer, turn) == (around, turns)
    assert [str(x.condition) for x in ir.find_all(dealt, ir.IfThenElse)] == (
        [bound] if bound else []
    )


def test_rows_of_a_tile_that_run_time_counts():
    """Rows 3 k to 3 k + 2 of 16, as eighths of a tensor: one eighth of it or two."""
    a = te.placeholder((2, 8, 64), "int16", name="A")
    c = te.compute((16, 64), lambda i, j: a[i // 8, i % 8, j] + te.const(1, "int16"), name="C")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, c])}))
    tile = sch.cache_read("C", 0, "shared.dyn")
    i, j = sch.get_loops("C")
    block, step, row = sch.split(i, [None, 4, 3])
    sch.bind(block, "blockIdx.x")
    sch.compute_at(tile, step)
    hs.async_copy(sch, tile, "none")
    sch.bind(sch.split(sch.fuse(row, j), [None, 128])[1], "threadIdx.x")
    given = np.arange(1024, dtype="int16").reshape(2, 8, 64)
    result = simulate(sch.mod, {"A": given}, target="nvidia/nvidia-h200")
    assert result.verdict == "clean", result.findings
    np.testing.assert_array_equal(result.outputs["C"], given.reshape(16, 64) + 1)
