"""Pipelines inside of a ring, by `hs.pipeline`: of rows that go to registers, of other copies."""

import itertools

import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.requests.keys import ORDER, STAGE
from tvm_hopper.simulation import load, verify
from tvm_hopper.testing.ampere_schedules import A100

H200 = "nvidia/nvidia-h200"


def weighted(trips: int) -> tvm.IRModule:
    """Build C[b, j], the sum over k of A[b, k, j] W[b, k]."""
    depth = 8 * trips
    a = te.placeholder((2, depth, 128), "float32", name="A")
    w = te.placeholder((2, depth), "float32", name="W")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((2, 128), lambda b, j: te.sum(a[b, k, j] * w[b, k], axis=k), name="C")
    func = te.create_prim_func([a, w, c]).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func})


def scheduled(mod, by, stages, roles, inner_first):
    """Schedule it: a column a thread; a row goes to registers while the one before is added."""
    sch = s_tir.Schedule(mod)
    out = sch.cache_write("C", 0, "local")
    block, column, k = sch.get_loops("C")
    sch.bind(block, "blockIdx.x")
    sch.bind(column, "threadIdx.x")
    sch.reverse_compute_at(out, column)
    trip, row = sch.split(k, [None, 8])
    tile = sch.cache_read("C", 0, "shared.dyn")
    sch.compute_at(tile, trip)
    hs.async_copy(sch, tile, by)
    sch.compute_at(sch.cache_read("C", 0, "local"), row)
    sch.decompose_reduction("C", trip)

    def outer():
        hs.pipeline(sch, trip, stages=stages, roles=roles)

    def inner():
        sch.annotate(row, STAGE, [0, 1])
        sch.annotate(row, ORDER, [0, 1])

    for ask in (inner, outer) if inner_first else (outer, inner):
        ask()
    return sch.mod


QUICK = [
    ("tma", 3, 5, None, True, H200),
    ("bulk", 2, 2, hs.Roles(1), False, H200),
    ("cp_async", 2, 3, None, True, A100),
    ("none", 2, 3, None, False, A100),
]
MORE = [
    (by, stages, trips, roles, bool(trips % 2), target)
    for by, stages, trips, roles, target in itertools.product(
        ("tma", "bulk", "cp_async"), (1, 3, 4), (1, 2, 5), (None, hs.Roles(1)), (H200, A100)
    )
    if target == H200 or (by == "cp_async" and roles is None)
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("by", "stages", "trips", "roles", "inner_first", "target"),
    [*QUICK, *(pytest.param(*x, marks=pytest.mark.slow) for x in MORE)],
)
def test_registers_in_a_ring(by, stages, trips, roles, inner_first, target):
    """`hs.pipeline` counts the inner loop once; what that comes apart to is of the same stage."""
    mod = weighted(trips)
    program = load(scheduled(mod, by, stages, roles, inner_first), target=target)
    report = verify(program, against=mod).require_clean()
    assert "values compared" in str(report)


@pytest.mark.parametrize(
    ("outer", "inner", "stages", "trips", "roles", "target"),
    [
        ("tma", "bulk", (2, 3), (3, 2), None, H200),
        ("cp_async", "auto", (3, 3), (3, 3), None, A100),
        pytest.param("auto", "tma", (2, 2), (3, 3), hs.Roles(1), H200, marks=pytest.mark.slow),
        pytest.param("tma", "cp_async", (1, 2), (2, 3), None, H200, marks=pytest.mark.slow),
    ],
)
def test_a_ring_in_a_ring(outer, inner, stages, trips, roles, target):
    """A row of W for some tiles of A; the inner pipeline, asked for first, is a statement."""
    a = te.placeholder((2, trips[0], 4 * trips[1], 128), "float32", name="A")
    w = te.placeholder((2, trips[0], 128), "float32", name="W")
    n, k = te.reduce_axis((0, trips[0]), "n"), te.reduce_axis((0, 4 * trips[1]), "k")
    c = te.compute((2, 128), lambda b, j: te.sum(a[b, n, k, j] * w[b, n, j], axis=[n, k]), name="C")
    mod = tvm.IRModule({"main": te.create_prim_func([a, w, c]).with_attr("global_symbol", "main")})
    sch = s_tir.Schedule(mod)
    out = sch.cache_write("C", 0, "local")
    block, column, turn, row = sch.get_loops("C")
    sch.bind(block, "blockIdx.x")
    sch.bind(column, "threadIdx.x")
    sch.reverse_compute_at(out, column)
    trip, _ = sch.split(row, [None, 4])
    for index, by, loop in ((1, outer, turn), (0, inner, trip)):
        tile = sch.cache_read("C", index, "shared.dyn")
        sch.compute_at(tile, loop)
        hs.async_copy(sch, tile, by)
    sch.decompose_reduction("C", turn)
    hs.pipeline(sch, trip, stages=stages[1], roles=roles)
    hs.pipeline(sch, turn, stages=stages[0])
    report = verify(load(sch.mod, target=target), against=mod).require_clean()
    assert "values compared" in str(report)
