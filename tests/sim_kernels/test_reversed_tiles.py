"""Rows in reverse: the first rows of the last tile do not exist, and have no place in it."""

import pytest
import tvm
from tvm import s_tir, te

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.errors import LoweringError

H200, A100 = "nvidia/nvidia-h200", "nvidia/nvidia-a100"


def reversed_rows(mechanism: str) -> s_tir.Schedule:
    """Return Y[i, j] = 2 X[19 - i, j] by tiles of 8 rows, three of them in flight."""
    x = te.placeholder((20, 64), name="X")
    y = te.compute((20, 64), lambda i, j: x[19 - i, j] * 2.0, name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    i, j = sch.get_loops("Y")
    step, _ = sch.split(i, [None, 8])
    sch.bind(sch.add_unit_loop(step), "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    tile = sch.cache_read("Y", 0, "shared.dyn")
    sch.compute_at(tile, step)
    hs.async_copy(sch, tile, mechanism)
    hs.pipeline(sch, step, stages=3)
    return sch


@pytest.mark.parametrize("target", [H200, A100], ids=["sm_90a", "sm_80"])
def test_threads_copy_them(target):
    sch = reversed_rows("auto")
    tvm_hopper.verify(sch, target=target, runs=(("on_wait", 0), ("random", 1))).require_clean()
    said = str(tvm_hopper.explain(sch, target))
    assert "not cp_async: copy of X into X_shared.dyn: found a store at " in said


def test_zeros_beside_the_tile_are_refused():
    match = (
        r"copy of X into X_shared.dyn: found a store at .* under the predicate .*; need places "
        r"inside of the tile \[8, 64\] for what it leaves out, too: zeros are stored there; let"
    )
    with pytest.raises(LoweringError, match=match):
        tvm.compile(reversed_rows("cp_async").mod, target=H200)
