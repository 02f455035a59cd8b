"""Rows of a tile that integers in memory place and count: boxes, single rows, zeros."""

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.simulation import simulate

TARGET = "nvidia/nvidia-h200"
ROWS, STEP, COLUMNS, POOL = 128, 64, 128, 12


def program(page, counted=True):
    """Return `B[i, c] = A[table[i // page], i % page, c]`, zero from `count[0]` on."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((POOL, page, COLUMNS), "float16"),
        table: T.Buffer((ROWS // page if page < ROWS else 1,), "int32"),
        count: T.Buffer((1,), "int32"),
        B: T.Buffer((ROWS, COLUMNS), "float16"),
    ):
        tile = T.sblock_alloc_buffer((ROWS, COLUMNS), "float16")
        for i, j in T.grid(ROWS, COLUMNS):
            with T.sblock("tile"):
                vi, vj = T.axis.remap("SS", [i, j])
                tile[vi, vj] = (
                    T.if_then_else(vi < count[0], A[table[vi // page], vi % page, vj], T.float16(0))
                    if counted
                    else A[table[vi // page], vi % page, vj]
                )
        for i, j in T.grid(ROWS, COLUMNS):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = tile[vi, vj]

    sch = s_tir.Schedule(main)
    rows, column = sch.get_loops("B")
    step, rows = sch.split(rows, [None, STEP])
    _, thread = sch.split(sch.fuse(rows, column), [None, 128])
    sch.bind(step, "blockIdx.x")
    sch.set_scope("tile", 0, "shared.dyn")
    sch.compute_at("tile", step)
    hs.async_copy(sch, sch.get_sblock("tile"), "tma")
    sch.bind(thread, "threadIdx.x")
    return sch.mod


@pytest.mark.parametrize("page", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("count", [0, 1, 40, 64, 77, 128])
def test_values(page, count):
    """What lies behind the last row is NaN: zeros are stored for it."""
    rng = np.random.default_rng(count)
    places = -(-ROWS // page)
    a = rng.standard_normal((POOL, page, COLUMNS)).astype("float16")
    table = rng.integers(0, POOL - 1, places)
    table[-1] = POOL - 1
    a[-1, page - (ROWS - count) % page :] = np.nan if ROWS - page < count else 0
    given = {"A": a, "table": table.astype("int32"), "count": np.array([count], "int32")}
    want = np.concatenate([a[x] for x in table])[:ROWS]
    want = np.where(np.arange(ROWS)[:, None] < count, want, 0)
    done = simulate(program(page), given, target=TARGET)
    assert done.findings == ()
    np.testing.assert_array_equal(done.outputs["B"], want)


def test_where_each_place_is_read():
    """Once for each page, in front of the loads of its boxes; a second map is of one row."""
    lowered = pipeline.lower(program(16), TARGET).script()
    (host,) = [x for x in lowered.splitlines() if "A_tail_map" in x and "Encode" in x]
    assert "A_tail_map" in host
    assert lowered.count("place") >= STEP // 16


def test_a_table_alone_has_no_second_map():
    mod = program(16, counted=False)
    text = str(pipeline.lower_final(mod, tvm.target.Target(TARGET)).host)
    assert "A_map" in text
    assert "A_tail_map" not in text
    table = np.arange(8)[::-1].astype("int32")
    a = np.random.default_rng(0).standard_normal((POOL, 16, COLUMNS)).astype("float16")
    done = simulate(mod, {"A": a, "table": table, "count": np.zeros(1, "int32")}, target=TARGET)
    np.testing.assert_array_equal(done.outputs["B"], a[table].reshape(ROWS, COLUMNS))
