"""Shared memory of final kernels: what threads copy gets its slots from TVM, the last of all."""

import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.errors import LoweringError


def pipelined(stages):
    x = te.placeholder((2, 128, 512), "float32", name="X")
    y = te.compute((2, 128, 512), lambda b, k, i: x[b, k, i] * 2, name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    block, k, thread = sch.get_loops("Y")
    tile = sch.cache_read("Y", 0, "shared.dyn")
    sch.compute_at(tile, k)
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    hs.async_copy(sch, tile, "none")
    hs.pipeline(sch, k, stages=stages)
    return sch.mod


@pytest.mark.parametrize(
    ("target", "most"), [("nvidia/nvidia-h200", 232448), ("nvidia/nvidia-a100", 166912)]
)
def test_more_than_a_block_may_have_is_refused(target, most):
    fits = most // 2048
    tvm.compile(pipelined(fits), target=target)
    need = rf"{(fits + 1) * 2048} bytes; need at most {most}; take fewer stages or a smaller tile$"
    with pytest.raises(LoweringError, match=rf"^kernel main_kernel: found shared memory .* {need}"):
        tvm.compile(pipelined(fits + 1), target=target)
