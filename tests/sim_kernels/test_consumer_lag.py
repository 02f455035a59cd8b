"""Consumers that begin apart: values, verdicts, and that each barrier is needed by the other."""

from __future__ import annotations

import functools

import pytest

from tests.sim_kernels.kernels import check as numbers
from tests.sim_kernels.kernels import scheduled
from tests.sim_kernels.mutate import change, with_argument
from tests.sim_kernels.test_each_sync_is_needed import POLICIES
from tvm_hopper.simulation import Program, load, simulate, verify
from tvm_hopper.testing import workloads

SLOW = pytest.mark.slow
SMALL = {"m": 256, "n": 32, "k": 80}
LAGGING = {"stages": 3, "consumers": 2, "lag": 2, "persistent": 1}


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (SMALL, {}),
        ({"m": 200, "n": 24, "k": 48}, {"persistent": 0}),  # as many steps as slots
        ({"m": 256, "n": 32, "k": 32}, {}),  # fewer: nobody waits
        pytest.param({"m": 384, "n": 32, "k": 80}, {"consumers": 3, "lag": 1}, marks=SLOW),
        pytest.param(
            {"m": 256, "n": 64, "k": 80}, {"cluster": (1, 2), "persistent": 2}, marks=SLOW
        ),
        pytest.param(SMALL | {"epilogue": ("residual", "relu")}, {"wgmma_pending": 1}, marks=SLOW),
        pytest.param(SMALL, {"split_k": 2, "stages": 2, "lag": 1, "persistent": 0}, marks=SLOW),
    ],
)
def test_values_and_every_interleaving(problem, config):
    config = LAGGING | config
    tile = (64 * config["consumers"], 32, 16)
    mod, module = scheduled(problem, tile, **config)
    report = verify(module, against=mod)
    assert report.verdict == "clean", str(report)
    assert "values compared" in str(report)


@pytest.mark.parametrize("depth", [32, 80])
def test_as_many_steps_as_run_time_says(depth):
    problem = {"m": 256, "n": 32, "k": "k", "layout": "TN"}
    numbers(problem, (128, 32, 16), extents={"k": depth}, **LAGGING)


@functools.cache
def right() -> tuple[Program, dict]:
    mod, module = scheduled(SMALL, (128, 32, 16), **LAGGING)
    names = [p.name for p in mod["main"].params]
    return load(module), dict(zip(names, workloads.make_inputs(mod, seed=1), strict=False))


def found(program: Program) -> set[str]:
    values = right()[1]
    return {rule for p in POLICIES for rule in simulate(program, values, p, seed=5).rules}


@pytest.mark.parametrize(
    ("name", "how", "rules"),
    [
        ("bar_arrive", (), {"DEADLOCK"}),
        ("bar_sync_count", (), {"NAMED_BAR_MISMATCH"}),
        ("bar_arrive", (with_argument(0, lambda old: old + 1),), {"DEADLOCK"}),
    ],
)
def test_one_without_the_other_is_seen(name, how, rules):
    assert not found(right()[0])
    assert rules <= found(change(right()[0], name, 0, *how))
