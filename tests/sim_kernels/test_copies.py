"""Copies by every mechanism, in and out: values and verdicts over shapes, trips, ranks, types.

The whole matrix is slow; what stands without that mark is a part of it of each kind.
"""

import itertools

import numpy as np
import pytest
from tvm import tirx

from tvm_hopper import ir, pipeline
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.keys import CP_ASYNC
from tvm_hopper.simulation import load as load_program, verify
from tvm_hopper.testing import copies
from tvm_hopper.testing.copies import Route

LOADS, STORES = ("tma", "bulk", "cp_async", None), ("tma", "bulk", None)
OURS = [x for x in itertools.product(LOADS, STORES) if x != (None, None)]
SLOTS = (1, 2, 3, 4)


def check(shape: tuple[int, ...], route: Route, dtype: str = "float16") -> None:
    """Verify a copy in any schedule of the model, and its values against the plain program."""
    report = verify(copies.schedule(copies.copy(*shape, dtype=dtype), route)).require_clean()
    assert "values compared" in str(report)


def trips_of(stages: int) -> list[int]:
    """Return the trips at which a ring may go wrong."""
    found = (1, 2, stages - 1, stages, stages + 1, 2 * stages, 2 * stages + 1)
    return sorted({trips for trips in found if trips > 0})


def route(load, store, **more):
    return Route((8, 64), load=load, store=store, threads=32, **{"stages": None, **more})


# -- each way in and out


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("load", "store"), OURS)
def test_every_route(load, store):
    check((37, 72), route(load, store, steps=3, stages=2 if load else None))


@pytest.mark.slow
@pytest.mark.parametrize("stages", SLOTS)
@pytest.mark.parametrize(("load", "store"), [x for x in OURS if x[0]])
def test_trips(load, store, stages):
    for trips in trips_of(stages):
        check((8 * trips - 3, 64), route(load, store, steps=trips, stages=stages))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("load", "store", "stages", "trips"),
    [
        *(("tma", "tma", 3, trips) for trips in (1, 2, 4)),
        *(("cp_async", "tma", 3, trips) for trips in (1, 2, 4, 7)),
        *(("bulk", None, 2, trips) for trips in (1, 3, 5)),
    ],
)
def test_some_trips(load, store, stages, trips):
    check((8 * trips - 3, 64), route(load, store, steps=trips, stages=stages))


@pytest.mark.slow
@pytest.mark.parametrize("rest", [0, 1, 4, 7])
@pytest.mark.parametrize("columns", [64, 72, 120])
@pytest.mark.parametrize(("load", "store"), OURS)
def test_rests(load, store, rest, columns):
    """Tiles that are cut in both dimensions, by 0, 1, half of one, and all but one."""
    stages = 3 if load else None
    check((32 - rest, columns), route(load, store, steps=2, stages=stages))


@pytest.mark.slow
@pytest.mark.parametrize(("load", "store"), [x for x in OURS if x[0]])
def test_tensors_smaller_than_a_tile(load, store):
    for rows, columns in ((1, 64), (3, 8), (8, 16)):
        check((rows, columns), route(load, store, steps=2, stages=2))


RANKS = {
    1: ((1000,), (256,)),
    3: ((9, 7, 64), (2, 4, 64)),
    4: ((3, 5, 6, 64), (1, 5, 4, 64)),
    5: ((3, 2, 5, 3, 64), (2, 1, 4, 2, 64)),
}


@pytest.mark.slow
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(("load", "store"), [x for x in OURS if x[0]])
def test_ranks(load, store, rank):
    shape, tile = RANKS[rank]
    check(shape, Route(tile, 2, load, store, stages=2, threads=32, vector=1))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("load", "store", "rank"),
    [("tma", "tma", 1), ("bulk", "tma", 3), ("tma", "bulk", 4), ("cp_async", "bulk", 5)],
)
def test_some_ranks(load, store, rank):
    """Boxes merge the rows of a tile; what is copied in bulk beside them follows."""
    shape, tile = RANKS[rank]
    check(shape, Route(tile, 2, load, store, stages=2, threads=32))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "float16", "bfloat16", "float32", "int32", "float64"])
@pytest.mark.parametrize(("load", "store"), OURS)
def test_types(load, store, dtype):
    check((21, 80), route(load, store, steps=3, stages=2 if load else None, vector=2), dtype)


@pytest.mark.parametrize(
    ("load", "store", "dtype"),
    [("cp_async", "bulk", "float64"), ("bulk", "tma", "int8"), ("tma", "tma", "float8_e4m3fn")],
)
def test_some_types(load, store, dtype):
    check((21, 80), route(load, store, steps=3, stages=2), dtype)


@pytest.mark.parametrize(("columns", "num_bytes"), [(72, 16), (68, 8), (66, 4)])
def test_chunks_are_as_wide_as_rows_allow(columns, num_bytes):
    """Rows of a multiple of 16, of 8, of 4 bytes."""
    mod = copies.copy(19, columns)
    sch = copies.schedule(mod, Route((8, columns), 2, "cp_async", None, 2, threads=32, vector=1))
    lowered = pipeline.lower(sch.mod, "nvidia/nvidia-h200", until="tvm_hopper.LowerAsyncCopies")[
        "main"
    ]
    calls = ir.find_all(lowered.body, ir.Call, lambda x: x.op.name == "tirx.call_extern")
    assert {int(x.args[3]) for x in calls if x.args[0].value == CP_ASYNC} == {num_bytes}
    check((19, columns), Route((8, columns), 2, "cp_async", None, 2, threads=32, vector=1))


@pytest.mark.parametrize("swizzle", [0, pytest.param(64, marks=pytest.mark.slow), 128])
@pytest.mark.parametrize("store", ["tma", None])
def test_chunks_under_a_swizzle(store, swizzle):
    """Who reads the tile finds what threads have put where hardware would."""
    columns = (swizzle or 128) // 2
    tile = Route((8, columns), 3, "cp_async", store, 2, threads=32, vector=4, swizzle=swizzle)
    check((37, columns), tile)


def test_more_threads_than_chunks():
    check((9, 32), Route((2, 32), 3, "cp_async", None, 2, threads=128, vector=1))


# -- extents of run time


def check_symbolic(shape, route: Route, sizes: list[dict[str, int]], dtype: str = "float16"):
    mod = copies.copy(*shape, dtype=dtype)
    program = load_program(copies.schedule(mod, route).mod)
    for values in sizes:
        extents = tuple(values.get(x, x) for x in shape)
        a = np.random.default_rng(1).integers(-9, 9, extents).astype(dtype)
        report = verify(program, {"A": a, "B": np.full(extents, 99, dtype)}, against=mod)
        assert report.verdict == "clean", f"{values}: {report}"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("load", "store"), [("cp_async", None), ("cp_async", "bulk"), ("bulk", None)]
)
def test_symbolic_rows(load, store):
    """None, fewer than a tile has, one more than tiles."""
    sizes = [{"n": rows} for rows in (0, 3, 33)]
    check_symbolic(("n", 72), route(load, store, steps=2, stages=3), sizes)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("load", "store"), OURS)
def test_every_route_of_symbolic_rows(load, store, steps):
    sizes = [{"n": rows} for rows in (0, 1, 7, 8, 9, 33)]
    stages = 3 if load else None
    check_symbolic(("n", 72), route(load, store, steps=steps, stages=stages), sizes)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "store"), [("cp_async", "tma"), ("cp_async", None)])
def test_symbolic_length(load, store):
    sizes = [{"n": length} for length in (0, 1, 8, 255, 256, 257, 1000)]
    check_symbolic(("n",), Route((256,), 2, load, store, 3, threads=32), sizes, "float32")


# -- what is launched


@pytest.mark.parametrize("load", ["cp_async", None])
def test_shared_memory_is_that_of_the_tiles(load):
    """TVM's passes retype an allocation whose accesses have one type, and do not count anew."""
    slots = 3 if load else 1
    stages = slots if load else None
    sch = copies.schedule(copies.copy(40, 64), route(load, "bulk", steps=5, stages=stages))
    (kernel,) = load_program(sch.mod).kernels.values()
    (memory,) = (x.buffer for x in ir.find_all(kernel.body, tirx.AllocBuffer))
    num_bytes = int(memory.shape[0]) * dtype_bytes(ir.dtype_of(memory))
    assert num_bytes == slots * 8 * 64 * dtype_bytes("float16")


# -- tiles that a tensor cuts


@pytest.mark.parametrize("load", ["cp_async", "bulk"])
def test_a_tensor_smaller_than_a_tile_of_a_ring(load):
    """TVM cuts the tile to what is read of it: chunks behind that need room, slots a boundary."""
    length = 63 if load == "cp_async" else 56
    check((length,), Route((64,), 5, load, None, 3, threads=64, vector=1))


def test_a_row_of_which_the_tensor_has_one_is_stored_once():
    """Four of five steps lie behind it, in a dimension that a map could leave out."""
    check((1, 1, 1, 112), Route((1, 4, 1, 64), 5, "cp_async", "tma", 1, threads=32))


def test_a_tile_that_holds_one_row_is_stored_by_loops_over_more():
    check((1, 1, 32), Route((1, 8, 64), 5, "tma", "bulk", None), "float64")


def test_bytes_of_a_tail_that_may_lie_behind_the_tensor():
    """Of four steps the last one or two have nothing left."""
    check((100,), Route((64,), 4, "bulk", "bulk", 1), "float64")


# -- tiles that begin outside of a tensor

SHIFTS = [  # down and right; as elements of 2 bytes that TMA may begin at, or by rows alone
    *(("tma", by) for by in ((1, 0), (7, -8), (-2, 16), (39, 8))),
    *(("cp_async", by) for by in ((1, 0), (3, -6), (-2, 0))),
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("load", "by"), SHIFTS)
def test_what_lies_outside_of_a_tensor_is_zero(load, by):
    """In front of it, too: rows from -1 on, whose condition TVM writes as 1 <= i."""
    mod = copies.shift(40, 96, by)
    report = verify(copies.schedule_shift(mod, load, 2), against=mod).require_clean()
    assert "values compared" in str(report)
