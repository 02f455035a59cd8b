"""Products whose sum a cluster shares: values, verdicts, and that each sync is needed."""

import functools

import pytest
from tvm import s_tir

from tests.sim_kernels import each_sync
from tests.sim_kernels.kernels import check as numbers, scheduled
from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import Program, verify
from tvm_hopper.testing.forms import FORMS

SLOW = pytest.mark.slow
SMALL = {"m": 64, "n": 16, "k": 96}
TILE = (64, 16, 16)


def check(problem, tile, parts, **config):
    """Verify a product, and its values against the plain program."""
    mod, module = scheduled(problem, tile, split_k=parts, **config)
    report = verify(module, against=mod).require_clean()
    assert "values compared" in str(report)


@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [
        (64, 16, 96, 2),  # three steps a part
        (64, 16, 16, 2),  # a part with none
        pytest.param(40, 24, 88, 3, marks=SLOW),  # ragged, the last part ends early
        pytest.param(72, 8, 160, 5, marks=SLOW),
        pytest.param(64, 16, 128, 8, marks=SLOW),
        pytest.param(64, 16, 112, 4, marks=SLOW),  # parts with two steps, the last with one
    ],
)
def test_sums_of_several_blocks(m, n, k, parts):
    check({"m": m, "n": n, "k": k}, TILE, parts, stages=2, consumers=1)


@pytest.mark.parametrize(
    ("m", "n", "k", "tile", "parts"),
    [
        (8, 64, 64, (64, 8, 16), 3),
        pytest.param(17, 72, 80, (64, 24, 16), 2, marks=SLOW),  # ragged
        pytest.param(1, 128, 144, (128, 8, 16), 4, marks=SLOW),  # two blocks of four store
    ],
)
def test_few_rows_transposed(m, n, k, tile, parts):
    check({"m": m, "n": n, "k": k}, tile, parts, stages=2, consumers=1, form="transposed")


@SLOW
def test_more_blocks_than_run_everywhere():
    """Right, and said: a part of the chip may hold no cluster of ten."""
    problem = {"m": 64, "n": 16, "k": 176}
    mod, module = scheduled(problem, TILE, split_k=10, stages=2, consumers=1)
    report = verify(module, against=mod, num_sms=64)
    assert report.verdict == "review", str(report)
    assert {x.rule for x in report.findings} == {"CLUSTER_NOT_PORTABLE"}
    assert "values compared" in str(report)


@SLOW
@pytest.mark.parametrize("out_dtype", ["float32", "float16", "bfloat16"])
def test_types_and_epilogues(out_dtype):
    problem = {"m": 64, "n": 32, "k": 64, "out_dtype": out_dtype, "epilogue": ("bias_col", "relu")}
    check(problem, (64, 32, 16), 2, stages=2, consumers=1)


@SLOW
@pytest.mark.parametrize("tile", [(128, 16, 16), (64, 32, 16)])
def test_two_consumers(tile):
    """That share rows, and columns."""
    check({"m": 128, "n": 32, "k": 64}, tile, 2, stages=2, consumers=2)


FORMS_OF_PRODUCTS = [
    "two_outputs",
    *(
        pytest.param(name, marks=SLOW)
        for name in ("product_and_activation", "in_place", "beta", "bias_first", "packed_qkv")
    ),
]


@pytest.mark.parametrize("form", FORMS_OF_PRODUCTS)
def test_forms_of_products(form):
    """Several outputs, whose sums are gathered in front of each; views; updates in place."""
    mod = FORMS[form](64, 32, 64, "float16")
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig((64, 32, 16), 2, 1, split_k=2))
    verify(sch.mod, against=mod).require_clean()


@SLOW
def test_sums_in_the_bytes_of_the_ring():
    """Four slots of 48 KiB and 128 KiB of sums have no room side by side."""
    problem = {"m": 128, "n": 256, "k": 512}
    check(problem, (128, 256, 64), 2, stages=4, consumers=2)


@SLOW
@pytest.mark.parametrize("k", [0, 16, 100])
def test_a_depth_that_is_known_at_run_time(k):
    """No terms are a sum of 0."""
    problem = {"m": 64, "n": 64, "k": "k", "layout": "TN"}
    numbers(problem, (64, 64, 16), extents={"k": k}, split_k=2, stages=2, consumers=1)


# -- each sync

DATA = {"cp_async_bulk_tensor_g2s_cluster", "setmaxnreg", "ld", "mapa_u32", "wgmma_f16_ss"}
DATA |= {"griddepcontrol"}  # tests/transforms/launch/test_enable_programmatic_launch.py
ARRIVE, WAIT = "barrier_cluster_arrive", "barrier_cluster_wait"
REMOVED = each_sync.OF_A_RING | {
    # Before peers read the sums, which may not even have begun.
    (ARRIVE, 0): {"NAMED_BAR_MISMATCH", "RACE_READ_INFLIGHT", "CLUSTER_TARGET_NOT_STARTED"},
    (WAIT, 0): {"NAMED_BAR_MISMATCH", "RACE_READ_INFLIGHT", "CLUSTER_TARGET_NOT_STARTED"},
    # The cluster barrier in front orders the same threads: who places this one does not know it.
    ("bar_sync_count", 0): set(),
    # Before a block leaves whose sums a peer may still read.
    (ARRIVE, 1): {"NAMED_BAR_MISMATCH", "CLUSTER_TARGET_EXITED"},
    (WAIT, 1): {"CLUSTER_TARGET_EXITED"},
}


@functools.cache
def right() -> tuple[Program, dict]:
    return each_sync.product(SMALL, TILE, split_k=2, stages=2, consumers=1)


def found(program: Program) -> set[str]:
    return each_sync.rules_broken(program, right()[1])


test_the_kernels_are_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = (
    each_sync.make_tests(right, REMOVED, DATA)
)


def test_a_peer_that_is_none_is_seen():
    wrong = change(right()[0], "mapa_u32", 1, with_argument(2, lambda old: old + 1))
    assert "OOB_ACCESS" in found(wrong)


def test_verify_sees_a_part_that_is_added_twice():
    """The second block's sums never come: values are wrong, and nothing else is."""
    mod, _ = scheduled(SMALL, TILE, split_k=2, stages=2, consumers=1)
    wrong = change(right()[0], "mapa_u32", 1, with_argument(2, lambda old: old - 1))
    report = verify(wrong, against=mod)
    assert {x.rule for x in report.findings} == {"WRONG_VALUE"}
