"""Products whose thread blocks load for one another: values, verdicts, each sync."""

import functools

import numpy as np
import pytest
from tvm import tirx

from tests.sim_kernels import each_sync
from tests.sim_kernels.kernels import check as numbers, scheduled
from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper.simulation import Program, load, simulate, verify
from tvm_hopper.testing import workloads

SLOW = pytest.mark.slow
SMALL = {"m": 128, "n": 16, "k": 80}
TILE = (64, 16, 16)


def check(problem, tile, cluster, **config):
    """Verify a product, and its values against the plain program."""
    mod, module = scheduled(problem, tile, cluster=cluster, **config)
    report = verify(module, against=mod).require_clean()
    assert "values compared" in str(report)


@pytest.mark.parametrize(
    ("m", "n", "k", "cluster"),
    [
        (128, 16, 80, (2, 1)),  # five steps over two slots
        (64, 32, 16, (1, 2)),  # one step
        pytest.param(100, 24, 40, (2, 1), marks=SLOW),  # ragged
        pytest.param(40, 16, 40, (2, 1), marks=SLOW),  # a block of the cluster has no rows
        pytest.param(64, 40, 88, (1, 2), marks=SLOW),
    ],
)
def test_clusters_of_two(m, n, k, cluster):
    check({"m": m, "n": n, "k": k}, TILE, cluster, stages=2, consumers=1)


@SLOW
@pytest.mark.parametrize("layout", ["NN", "TN", "TT"])
def test_layouts(layout):
    """Boxes of operands whose rows run along m or n are cut along k."""
    problem = {"m": 128, "n": 32, "k": 40, "layout": layout}
    check(problem, (64, 16, 16), (2, 1), stages=2, consumers=1)
    check(problem, (64, 16, 16), (1, 2), stages=2, consumers=1)


@pytest.mark.parametrize(
    "config",
    [
        {"persistent": 1, "wgmma_pending": 1, "consumers": 1},
        pytest.param({"persistent": -1, "consumers": 2}, marks=SLOW),
        pytest.param({"store": "tma", "consumers": 2}, marks=SLOW),
    ],
)
def test_with_what_else_there_is(config):
    out = {"out_dtype": "float16"} if "store" in config else {}
    rows = 128 * config["consumers"]
    problem = {"m": 2 * rows, "n": 16, "k": 48, **out}
    check(problem, (rows // 2, 16, 16), (2, 1), stages=2, **config)


@pytest.mark.parametrize(
    ("m", "n", "k", "cluster", "parts"),
    [
        (128, 16, 96, (2, 1), 2),
        pytest.param(100, 40, 112, (1, 2), 3, marks=SLOW),  # ragged, the last part ends early
        pytest.param(128, 16, 96, (2, 1), 4, marks=SLOW),
    ],
)
def test_parts_of_sums(m, n, k, cluster, parts):
    """Blocks of one part load for one another, those of one tile add their sums."""
    check({"m": m, "n": n, "k": k}, TILE, cluster, split_k=parts, stages=2, consumers=1)


@SLOW
def test_transposed():
    check({"m": 24, "n": 260, "k": 40}, TILE, (2, 1), stages=2, consumers=1, form="transposed")


@SLOW
@pytest.mark.parametrize("rows", [0, 1, 128, 200])
def test_rows_that_are_known_at_run_time(rows):
    problem = {"m": "m", "n": 32, "k": 40}
    numbers(problem, TILE, extents={"m": rows}, cluster=(2, 1), stages=2, consumers=1)


@pytest.mark.parametrize(
    ("m", "n", "cluster"),
    [
        (128, 32, (2, 2)),  # A for two and B for two others
        pytest.param(256, 32, (4, 1), marks=SLOW),
        pytest.param(128, 128, (2, 4), marks=SLOW),
    ],
)
def test_values_of_larger_clusters(m, n, cluster):
    """Under several schedules each: all interleavings of four blocks are too many to explore."""
    tile = (64, n // cluster[1], 16)
    mod, module = scheduled({"m": m, "n": n, "k": 48}, tile, cluster=cluster, stages=2, consumers=1)
    a, b = workloads.make_inputs(mod, seed=2)
    for policy in each_sync.POLICIES:
        result = simulate(load(module), {"A": a, "B": b}, policy, seed=3)
        assert not result.findings, str(result.findings)
        np.testing.assert_array_equal(result.outputs["C"], workloads.reference([a, b]))


# -- each sync

DATA = {"cp_async_bulk_tensor_g2s_cluster", "setmaxnreg", "mapa_u32", "wgmma_f16_ss"}
DATA |= {"griddepcontrol"}  # tests/transforms/launch/test_enable_programmatic_launch.py
ARRIVE, WAIT = "barrier_cluster_arrive", "barrier_cluster_wait"
REMOVED = {
    ("mbarrier_init", 0): {"MBAR_USE_BEFORE_INIT"},
    ("mbarrier_init", 1): {"MBAR_USE_BEFORE_INIT"},
    ("fence_mbarrier_init", 0): {"MBAR_INIT_UNPUBLISHED"},
    ("mbarrier_wait", 0): {"MBAR_MISSING_WAIT"},
    ("mbarrier_arrive_expect_tx", 0): {"DEADLOCK"},
    ("mbarrier_wait", 1): {"RACE_READ_INFLIGHT"},
    ("wgmma_fence", 0): {"WGMMA_FENCE_MISSING"},
    ("wgmma_commit_group", 0): {"WGMMA_REG_INFLIGHT"},
    ("wgmma_wait_group", 0): {"WGMMA_REG_INFLIGHT"},
    # One for each block of the cluster.
    ("mbarrier_arrive_nocount", 0): {"DEADLOCK"},
    ("mbarrier_arrive_nocount", 1): {"DEADLOCK"},
    # Before a block loads into another one, or arrives there.
    (ARRIVE, 0): {"NAMED_BAR_MISMATCH"},
    (WAIT, 0): {"MBAR_USE_BEFORE_INIT", "MBAR_INIT_UNPUBLISHED"},
    # Before a block leaves at whose barriers another one may still arrive.
    (ARRIVE, 1): {"NAMED_BAR_MISMATCH"},
    (WAIT, 1): {"CLUSTER_TARGET_EXITED"},
}


@functools.cache
def right() -> tuple[Program, dict]:
    return each_sync.product(SMALL, TILE, cluster=(2, 1), stages=2, consumers=1)


def found(program: Program) -> set[str]:
    return each_sync.rules_broken(program, right()[1])


test_the_kernels_are_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = (
    each_sync.make_tests(right, REMOVED, DATA)
)


def counts(number):
    return with_argument(1, tirx.IntImm("uint32", number))


@pytest.mark.parametrize(
    ("instruction", "which", "new", "rules"),
    [
        # The producer waits for its own consumers alone, as if nobody else read what it loads.
        ("mbarrier_init", 1, counts(1), {"MBAR_MISSING_WAIT"}),
        # Nobody waits for the second block's share of the tile.
        ("mbarrier_arrive_expect_tx", 0, counts(64 * 32 + 8 * 32), {"MBAR_TX_MISMATCH"}),
        # Loaded for the block itself alone.
        (
            "cp_async_bulk_tensor_g2s_cluster",
            1,
            with_argument(5, tirx.IntImm("uint16", 1)),
            {"DEADLOCK"},
        ),
        # Told to no block of the cluster.
        ("mapa_u32", 1, with_argument(2, lambda old: old + 1), {"OOB_ACCESS"}),
    ],
)
def test_seeded_bugs(instruction, which, new, rules):
    assert rules <= found(change(right()[0], instruction, which, new))
