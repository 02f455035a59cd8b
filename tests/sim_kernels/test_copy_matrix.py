"""Copies over the rest of the matrix: trips of producers, tiles that blocks share, the older chip.

Shapes, ranks, types and trips of kernels without roles are in `test_copies.py`.
"""

import pytest

from tests.sim_kernels.test_copies import OURS, SLOTS, check_symbolic, route, trips_of
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import verify
from tvm_hopper.testing import copies
from tvm_hopper.testing.ampere_schedules import A100
from tvm_hopper.testing.copies import Route

LOADS = ("tma", "bulk", "cp_async")
H200 = "nvidia/nvidia-h200"


def check(shape, route: Route, target=H200, dtype: str = "float16") -> None:
    """Verify a copy in any schedule of the model, and its values against the plain program."""
    mod = copies.copy(*shape, dtype=dtype)
    report = verify(copies.schedule(mod, route).mod, target=target, against=mod).require_clean()
    assert report.values.checked


def beside_a_producer(load: str, consumers: int = 1, **more) -> Route:
    roles = hs.Roles(consumers)
    return Route((8, 64), load=load, store=None, roles=roles, threads=128 * consumers, **more)


# -- beside a producer


@pytest.mark.parametrize(("load", "trips"), [("bulk", 3), ("cp_async", 3)])
def test_some_trips_beside_a_producer(load, trips):
    check((8 * trips - 3, 64), beside_a_producer(load, steps=trips, stages=2, vector=4))


@pytest.mark.slow
@pytest.mark.parametrize("stages", SLOTS)
@pytest.mark.parametrize("load", LOADS)
def test_trips_beside_a_producer(load, stages):
    for trips in sorted({*trips_of(stages), max(2 * stages - 1, 1)}):
        check((8 * trips - 3, 64), beside_a_producer(load, steps=trips, stages=stages, vector=4))


@pytest.mark.slow
@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize("load", LOADS)
def test_consumers_beside_a_producer(load, consumers):
    tile = (24, 64)
    roles = hs.Roles(consumers)
    check((69, 72), Route(tile, 3, load, None, 2, roles, threads=128 * consumers, vector=4))


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_symbolic_rows_beside_a_producer(load):
    """None, and so no block; fewer than a tile; one more than tiles."""
    sizes = [{"n": rows} for rows in (0, 1, 7, 8, 9, 33)]
    check_symbolic(("n", 72), beside_a_producer(load, steps=3, stages=2, vector=4), sizes)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [64, 72, 120])
@pytest.mark.parametrize("load", LOADS)
def test_rests_beside_a_producer(load, columns):
    for rest in (0, 1, 7):
        check((32 - rest, columns), beside_a_producer(load, steps=2, stages=3, vector=4))


# -- tiles that thread blocks take in turn


@pytest.mark.parametrize(("load", "store"), [("cp_async", None)])
def test_some_tiles_that_blocks_share(load, store):
    """Three tiles a block over two slots: phases carry on over an odd number of trips."""
    check((45, 64), route(load, store, stages=2, blocks=2))


def test_tiles_that_blocks_share_of_a_number_that_a_call_tells():
    """Which rows a tile has follows from a division by their number in the middle dimension."""
    more = {"stages": 4, "roles": hs.Roles(1), "threads": 128, "vector": 2, "blocks": 2}
    check_symbolic((5, "n", 64), Route((2, 2, 64), 5, "bulk", None, **more), [{"n": 7}], "int8")


@pytest.mark.slow
@pytest.mark.parametrize("tiles", [1, 2, 3, 5])
@pytest.mark.parametrize(("load", "store"), [x for x in OURS if x[0]])
def test_tiles_that_blocks_share(load, store, tiles):
    """Odd numbers of trips; rounds over the slots that no number of them fills."""
    check((16 * tiles - 3, 64), route(load, store, stages=2, blocks=2))


# -- trips one short of two rounds


@pytest.mark.slow
@pytest.mark.parametrize("stages", SLOTS)
@pytest.mark.parametrize(("load", "store"), [x for x in OURS if x[0]])
def test_one_trip_less_than_two_rounds(load, store, stages):
    trips = max(2 * stages - 1, 1)
    check((8 * trips, 64), route(load, store, steps=trips, stages=stages))


# -- the older chip: groups of cp.async, and threads alone


@pytest.mark.parametrize(("stages", "trips"), [(None, 2), (2, 3)])
def test_some_trips_on_ampere(stages, trips):
    check((8 * trips - 3, 64), route("cp_async", None, steps=trips, stages=stages), A100)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("stages", SLOTS)
def test_trips_on_ampere(stages, threads):
    for trips in sorted({*trips_of(stages), max(2 * stages - 1, 1)}):
        tile = Route((8, 64), trips, "cp_async", None, stages, threads=threads)
        check((8 * trips - 3, 64), tile, A100)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [64, 72, 68, 66])
def test_rests_on_ampere(columns):
    """Rows of a multiple of 16, 8 and 4 bytes."""
    for rest in (0, 1, 4, 7):
        tile = Route((8, 64), 2, "cp_async", None, 3, threads=32, vector=2)
        check((32 - rest, columns), tile, A100)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32", "float64", "float8_e4m3fn"])
def test_types_on_ampere(dtype):
    tile = Route((8, 64), 3, "cp_async", None, 2, threads=32, vector=2)
    check((21, 80), tile, A100, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "store"), [x for x in OURS if x[0]])
def test_bytes_that_are_floats(load, store):
    check((21, 80), route(load, store, steps=3, stages=2, vector=2), dtype="float8_e4m3fn")
