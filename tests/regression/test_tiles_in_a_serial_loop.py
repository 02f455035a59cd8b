"""A loop over output tiles that no block index takes: each tile starts a sum of its own.

With one trip over k in it, the fill stood behind the fence (C7519), since only a kernel without any
loop was taken for one whose product runs once.
"""

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tests.sim_kernels.kernels import multiply_by_hand
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import simulate
from tvm_hopper.testing import workloads


@pytest.mark.parametrize("depth", [64, 128], ids=["one iteration", "two iterations"])
def test_it_assembles_and_is_right(depth: int) -> None:
    mod = workloads.matmul(64, 64, depth)
    sch = s_tir.Schedule(mod)
    i, j, k = sch.get_loops("C")
    i0, part, mt = sch.split(i, [None, 1, 64])
    j0, nt = sch.split(j, [None, 32])
    k0, k1 = sch.split(k, [None, 64])
    sch.reorder(i0, j0, part, k0, mt, nt, k1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(part, "threadIdx.y")
    multiply_by_hand(sch, part, k0, fused=True, roles=hs.Roles(1))
    ex = tvm.compile(sch.mod, target="nvidia/nvidia-h200")
    assert tvm_hopper.cubin(ex)  # the assembler's log is judged
    a, b = workloads.make_inputs(mod, seed=1)
    result = simulate(ex, {"A": a, "B": b})
    assert result.verdict == "clean", str(result)
    want = workloads.reference((a, b), "NT", ())
    np.testing.assert_array_equal(result.outputs["C"], want.astype("float32"))
