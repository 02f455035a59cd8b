"""Epilogues beside the other half's products: values, verdicts, and that each sync is needed."""

from __future__ import annotations

import functools

import pytest
import tvm

from tests.sim_kernels.kernels import check as numbers
from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.mutate import change
from tests.sim_kernels.test_each_sync_is_needed import POLICIES, emitted_by
from tvm_hopper.requests.keys import OVERLAP
from tvm_hopper.simulation import Program, load, simulate, verify
from tvm_hopper.testing import workloads

SLOW = pytest.mark.slow
TILE = (128, 16, 16)
SMALL = {"m": 256, "n": 32, "k": 80}  # four tiles of five steps
ONE = {"consumers": 1, "wgmma_pending": 0, "stages": 3, "persistent": 2}


def beside(steps):
    """Ask for halves of so many steps."""
    return tvm.transform.PassContext(config={OVERLAP: steps})


@pytest.mark.parametrize(
    ("steps", "problem", "tile", "config"),
    [
        (2, SMALL | {"epilogue": ("bias_col", "gelu"), "out_dtype": "float16"}, TILE, {}),
        (1, SMALL | {"m": 200, "n": 40, "layout": "NN"}, TILE, {}),  # ragged
        pytest.param(3, SMALL | {"k": 96}, TILE, {}, marks=SLOW),  # as many as slots, no more trips
        pytest.param(2, SMALL | {"m": 128, "n": 16}, TILE, {}, marks=SLOW),  # one tile
        pytest.param(2, SMALL, (384, 16, 16), {"consumers": 2}, marks=SLOW),  # three rows
        pytest.param(
            2, SMALL | {"m": 512}, (256, 16, 16), {"consumers": 2, "cluster": (2, 1)}, marks=SLOW
        ),
    ],
)
def test_halves(steps, problem, tile, config):
    with beside(steps):
        mod, module = scheduled(problem, tile, **ONE | config)
        report = verify(module, against=mod)
    assert report.verdict == "clean", str(report)
    assert "values compared" in str(report)


@SLOW
@pytest.mark.parametrize("rows", [1, 128, 300])
def test_rows_that_are_known_at_run_time(rows):
    problem = SMALL | {"m": "m", "epilogue": ("bias_col", "relu")}
    with beside(2):
        numbers(problem, TILE, extents={"m": rows}, **ONE | {"persistent": -1})


# -- each sync

HOLDS = {"tvm_hopper_hold_float32", "tvm_hopper_code_fence"}  # for the compiler
DATA = {"cp_async_bulk_tensor_g2s_cluster", "setmaxnreg", "wgmma_f16_ss", *HOLDS}
REMOVED = {
    ("mbarrier_init", 0): {"UNINIT_READ"},
    ("mbarrier_init", 1): {"RACE_OVERWRITE_BUSY"},
    ("fence_mbarrier_init", 0): {"MBAR_INIT_FENCE"},
    ("tvm_storage_sync", 0): {"RACE_OVERWRITE_BUSY"},
    ("griddepcontrol", 0): set(),
    ("griddepcontrol", 1): set(),
    ("mbarrier_wait", 0): {"RACE_OVERWRITE_BUSY"},
    ("mbarrier_wait", 1): {"RACE_OVERWRITE_BUSY"},
    ("mbarrier_wait", 2): {"RACE_OVERWRITE_BUSY"},
    ("mbarrier_wait", 3): {"RACE_OVERWRITE_BUSY"},
    ("mbarrier_wait", 4): {"RACE_OVERWRITE_BUSY"},
    ("mbarrier_wait", 5): {"RACE_OVERWRITE_BUSY"},
    ("mbarrier_arrive_expect_tx", 0): {"DEADLOCK"},
    ("wgmma_fence", 0): {"WGMMA_FENCE_MISSING"},
    ("wgmma_fence", 1): set(),
    ("wgmma_fence", 2): {"WGMMA_FENCE_MISSING"},
    ("wgmma_fence", 3): set(),
    ("wgmma_fence", 4): {"WGMMA_FENCE_MISSING"},
    ("wgmma_fence", 5): {"WGMMA_FENCE_MISSING"},
    ("wgmma_fence", 6): set(),
    ("wgmma_fence", 7): set(),
    ("wgmma_fence", 8): set(),
    ("wgmma_commit_group", 0): set(),
    ("wgmma_commit_group", 1): set(),
    ("wgmma_commit_group", 2): {"RACE_OVERWRITE_BUSY"},
    ("wgmma_commit_group", 3): {"WGMMA_REG_INFLIGHT"},
    ("wgmma_commit_group", 4): {"WGMMA_REG_INFLIGHT"},
    ("wgmma_commit_group", 5): set(),
    ("wgmma_commit_group", 6): {"WGMMA_REG_INFLIGHT"},
    ("wgmma_commit_group", 7): {"WGMMA_REG_INFLIGHT"},
    ("wgmma_commit_group", 8): {"WGMMA_REG_INFLIGHT"},
    # For the assembler: the groups that it counts were waited for at the end of the tile before.
    ("wgmma_wait_group", 0): set(),
    ("wgmma_wait_group", 1): {"RACE_OVERWRITE_BUSY"},
    ("wgmma_wait_group", 2): {"WGMMA_REG_INFLIGHT"},
    ("wgmma_wait_group", 3): {"WGMMA_REG_INFLIGHT"},
    ("wgmma_wait_group", 4): {"WGMMA_REG_INFLIGHT"},
    ("wgmma_wait_group", 5): {"RACE_OVERWRITE_BUSY"},
    ("wgmma_wait_group", 6): {"WGMMA_REG_INFLIGHT"},
    ("mbarrier_arrive_nocount", 0): {"DEADLOCK"},
    ("mbarrier_arrive_nocount", 1): {"DEADLOCK"},
    ("mbarrier_arrive_nocount", 2): {"DEADLOCK"},
    ("mbarrier_arrive_nocount", 3): {"DEADLOCK"},
    ("mbarrier_arrive_nocount", 4): {"DEADLOCK"},
}


@functools.cache
def right() -> tuple[Program, dict]:
    with beside(2):
        mod, module = scheduled(SMALL, TILE, **ONE)
        names = [p.name for p in mod["main"].params]
        return load(module), dict(zip(names, workloads.make_inputs(mod, seed=1), strict=False))


def found(program: Program) -> set[str]:
    values = right()[1]
    return {rule for p in POLICIES for rule in simulate(program, values, p, seed=5).rules}


def test_the_kernel_is_clean():
    assert found(right()[0]) == set()


@pytest.mark.parametrize(("instruction", "which"), REMOVED)
def test_simulator_misses_it(instruction, which):
    rules = found(change(right()[0], instruction, which))
    want = REMOVED[instruction, which]
    assert want <= rules, rules
    assert bool(rules) == bool(want)


def test_every_sync_is_in_the_table():
    names = [name for name in emitted_by(right()[0]) if name not in DATA]
    assert {(name, i) for name in names for i in range(names.count(name))} == set(REMOVED)
