"""Iterations, remainders, empty and symbolic shapes, forms of the program, in the simulator."""

import pytest

from tests.sim_kernels.kernels import check

SMALL = (64, 8, 16)


def trip_counts():
    """Yield stages, pending groups and iterations: fewer than slots, as many, more, two rounds."""
    for stages in (1, 2, 3, 4):
        for pending in (0, 1):
            if pending < stages:
                for trips in sorted({1, 2, stages - 1, stages, stages + 1, 2 * stages + 1} - {0}):
                    yield stages, pending, trips


TRIPS = list(trip_counts())


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("stages", "pending", "trips"), TRIPS)
def test_iterations(stages, pending, trips):
    problem = {"m": 64, "n": 8, "k": 16 * trips}
    check(problem, SMALL, stages=stages, consumers=1, wgmma_pending=pending)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("pending", [0, 1])
@pytest.mark.parametrize("trips", [1, 2, 3, 5])
def test_iterations_of_persistent_blocks(trips, pending):
    """Five tiles over two blocks: phases carry on over an odd number of iterations."""
    problem = {"m": 320, "n": 8, "k": 16 * trips}
    check(problem, SMALL, stages=2, consumers=1, wgmma_pending=pending, persistent=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", ["eager", "lifo", "random", "starve:producer", "starve:consumer"]
)
@pytest.mark.parametrize(("stages", "pending", "trips"), TRIPS)
def test_iterations_under_other_schedules(stages, pending, trips, policy):
    problem = {"m": 64, "n": 16, "k": 16 * trips}
    config = {"stages": stages, "consumers": 2, "wgmma_pending": pending}
    check(problem, (64, 16, 16), policy=policy, seed=3, **config)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("layout", ["NT", "NN", "TN", "TT"])
@pytest.mark.parametrize("rest", [8, 56, 63])
def test_remainders(rest, layout):
    """What is left over in each dimension; 16-byte rows decide where it may be odd."""
    rows = 64 + rest if layout[0] == "N" else 64 + rest // 8 * 8
    columns = 64 + rest if layout[1] == "T" else 64 + rest // 8 * 8
    depth = 64 + rest // 8 * 8
    problem = {"m": rows, "n": columns, "k": depth, "layout": layout, "out_dtype": "float16"}
    check(problem, stages=2, consumers=1)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("extent", [0, 1, 65, 63, 200, 64])
def test_symbolic_rows(extent):
    problem = {"m": "m", "n": 40, "k": 72, "index": "int64", "epilogue": ("residual",)}
    check(problem, extents={"m": extent}, stages=2, consumers=1)


@pytest.mark.parametrize("extent", [0, 1, 65])
def test_symbolic_rows_of_a_persistent_kernel(extent):
    problem = {"m": "m", "n": 136, "k": 24, "index": "int64"}
    config = {"stages": 2, "consumers": 1, "persistent": 2, "raster": 2}
    check(problem, extents={"m": extent}, **config)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("persistent", [None, 2])
@pytest.mark.parametrize("extent", [0, 1, 16, 17, 80])
def test_symbolic_depth(extent, persistent):
    """A sum over nothing is 0, and is stored."""
    problem = {"m": 192, "n": 16, "k": "k", "layout": "TN", "index": "int64"}
    config = {"stages": 2, "consumers": 1, "wgmma_pending": 1, "persistent": persistent}
    check(problem, (64, 16, 16), extents={"k": extent}, **config)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("extent", [0, 1, 64, 65])
def test_symbolic_columns(extent):
    problem = {"m": 72, "n": "n", "k": 40, "out_dtype": "float16", "epilogue": ("bias_col",)}
    check(problem, extents={"n": extent}, stages=2, consumers=2, raster=2)


@pytest.mark.parametrize("accumulator", ["float16", "bfloat16"])
def test_a_narrow_accumulator_is_widened_on_request(accumulator):
    """Sums up to 800, which neither bfloat16 nor, with fractions, float16 would hold."""
    problem = {"m": 64, "n": 8, "k": 200, "dtype": accumulator, "out_dtype": accumulator}
    problem |= {"acc_dtype": accumulator, "cast": "none"}
    check(problem, SMALL, stages=2, consumers=1, accumulate="float32")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "form",
    [
        {"cast": "after"},
        {"swap": True},
        {"cast_stage": True},
        {"batch": True},
        {"index": "int64"},
        {"batch": True, "index": "int64", "cast_stage": True, "swap": True},
    ],
    ids=lambda form: "+".join(form),
)
@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_forms_of_the_program(form, layout):
    problem = {"m": 72, "n": 40, "k": 72, "layout": layout, "out_dtype": "bfloat16", **form}
    check(problem, stages=2, consumers=2)


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_rows_shared_by_consumers(consumers):
    problem = {"m": 64 * consumers + 8, "n": 16, "k": 40}
    check(problem, (64 * consumers, 16, 16), stages=3, consumers=consumers, wgmma_pending=1)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("layout", ["NT", "NN", "TN", "TT"])
@pytest.mark.parametrize("consumers", [2, 3])
def test_columns_shared_by_consumers(consumers, layout):
    """MN-major columns have to be panels that each consumer can start at."""
    problem = {"m": 64, "n": 32 * consumers, "k": 64, "layout": layout}
    check(problem, (64, 32 * consumers, 64), stages=2, consumers=consumers)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["NT", "NN", "TN", "TT"])
@pytest.mark.parametrize("tile", [(128, 128, 64), (128, 256, 64), (192, 128, 64), (64, 320, 64)])
def test_large_tiles(tile, layout):
    consumers = max(1, tile[0] // 64)
    problem = {"m": tile[0] + 8, "n": tile[1], "k": 200, "layout": layout, "out_dtype": "float16"}
    check(problem, tile, stages=2, consumers=consumers, wgmma_pending=1)
