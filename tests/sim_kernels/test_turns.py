"""Consumers that compute output tiles in turn: values, verdicts, and that each sync is needed."""

import functools

import pytest

from tests.sim_kernels import each_sync
from tests.sim_kernels.kernels import check as numbers, scheduled
from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper.simulation import Program, verify

SLOW = pytest.mark.slow
TILE = (64, 16, 16)
SMALL = {"m": 128, "n": 48, "k": 48}  # six tiles of three steps
PINGPONG = {"schedule": "pingpong", "stages": 2}


def judged(problem, tile=TILE, **config):
    """Return the verdict on a product, with its values against the plain program."""
    mod, module = scheduled(problem, tile, **PINGPONG | config)
    report = verify(module, against=mod)
    assert "values compared" in str(report)
    return report


@pytest.mark.parametrize(
    ("problem", "persistent", "config"),
    [
        (SMALL, 1, {}),
        pytest.param(SMALL, 4, {"wgmma_pending": 0}, marks=SLOW),  # blocks of two tiles and of one
        pytest.param({"m": 100, "n": 40, "k": 80}, 2, {"stages": 4}, marks=SLOW),  # ragged
        pytest.param({"m": 128, "n": 112, "k": 16}, 2, {"consumers": 3}, marks=SLOW),  # one step
        pytest.param({"m": 64, "n": 16, "k": 64}, -1, {}, marks=SLOW),  # one tile
    ],
)
def test_output_tiles_in_turn(problem, persistent, config):
    report = judged(problem, persistent=persistent, **config)
    assert report.verdict == "clean", str(report)


@SLOW
@pytest.mark.parametrize("tile", [(128, 32, 16), (192, 16, 32)])
def test_several_instructions_of_rows(tile):
    report = judged({"m": 384, "n": 64, "k": 96, "layout": "TN"}, tile, persistent=3)
    assert report.verdict == "clean", str(report)


@SLOW
@pytest.mark.parametrize("rows", [1, 64, 200])
def test_rows_that_are_known_at_run_time(rows):
    problem = {"m": "m", "n": 32, "k": 48, "epilogue": ("bias_col", "relu")}
    numbers(problem, TILE, extents={"m": rows}, persistent=-1, **PINGPONG)


# -- each sync

HOLDS = {"tvm_hopper_hold_float32", "tvm_hopper_code_fence"}  # for the compiler
DATA = {"cp_async_bulk_tensor_g2s_cluster", "setmaxnreg", "wgmma_f16_ss", *HOLDS}
DATA |= {"griddepcontrol"}  # tests/transforms/launch/test_enable_programmatic_launch.py
REMOVED = each_sync.OF_A_RING | {
    # A set that has not got its turn takes the parity of an older phase for its own.
    ("bar_sync_count", 0): {"NAMED_BAR_MISMATCH"},
    ("wgmma_wait_group", 0): {"RACE_OVERWRITE_BUSY"},
    ("bar_arrive", 0): {"DEADLOCK"},
    ("wgmma_wait_group", 1): {"WGMMA_REG_INFLIGHT"},
    ("mbarrier_arrive_nocount", 1): {"DEADLOCK"},
}


@functools.cache
def right() -> tuple[Program, dict]:
    return each_sync.product(SMALL, TILE, persistent=1, **PINGPONG)


def found(program: Program) -> set[str]:
    return each_sync.rules_broken(program, right()[1])


test_the_kernels_are_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = (
    each_sync.make_tests(right, REMOVED, DATA)
)


def test_a_turn_that_nobody_waits_for_is_seen():
    """Of every interleaving some take an older phase of a slot for this set's own."""
    mod, _ = scheduled(SMALL, TILE, persistent=1, **PINGPONG)
    report = verify(change(right()[0], "bar_sync_count", 0), against=mod)
    assert report.verdict == "error"


def test_a_turn_that_is_passed_to_the_wrong_set_is_seen():
    wrong = change(right()[0], "bar_arrive", 0, with_argument(0, lambda old: old + 1))
    assert found(wrong)
