"""The barrier of the grid: what it orders, who must come, and what a launch needs for it."""

import functools

import numpy as np
import pytest
from tvm.script import tirx as T

from tvm_hopper.sim import cta_selection
from tvm_hopper.simulation import simulate, verify

from .hand_threaded import F32, hand_threaded
from .kernels import POLICIES, lower

COOPERATIVE = ["blockIdx.x", "threadIdx.x", "tirx.use_cooperative_launch"]


@functools.cache
def program(ctas=4, syncs=1, who="all", cooperative=True, again=False, threads=128):
    """Let each CTA read, behind the barrier, what its neighbour stored before it."""

    @hand_threaded(threads, grid=ctas)
    def main(X: F32[ctas, 128], W: F32[ctas, 128], Y: F32[ctas, 128], bx, tx):
        W[bx, tx] = X[bx, tx] * T.float32(2)
        if who == "all":
            for _ in T.serial(syncs):
                T.cuda.grid_sync()
        elif who == "some blocks":
            if bx > 0:
                T.cuda.grid_sync()
        elif who == "some lanes":
            if tx % 2 == 0:
                T.cuda.grid_sync()
        elif who == "not the first warp":
            if tx >= 32:
                T.cuda.grid_sync()
        elif who == "the first warp" and tx < 32:
            T.cuda.grid_sync()
        Y[bx, tx] = W[(bx + 1) % ctas, tx]
        if again:
            W[(bx + 2) % ctas, tx] = T.float32(0)

    return lower(main.with_attr("tirx.kernel_launch_params", COOPERATIVE) if cooperative else main)


def inputs(ctas=4):
    return {"X": np.arange(ctas * 128, dtype="float32").reshape(ctas, 128)}


@pytest.mark.parametrize(("policy", "seed"), [*POLICIES, ("in_turn", 0)])
def test_what_stands_before_the_barrier_is_seen_behind_it(policy, seed):
    result = simulate(program(), inputs(), policy, seed).require_clean()
    assert np.array_equal(result.outputs["Y"], np.roll(inputs()["X"], -1, 0) * 2)


@pytest.mark.parametrize("ctas", [4, 12])
def test_the_whole_verdict_is_clean_and_every_cta_runs(ctas):
    report = verify(program(ctas), inputs(ctas)).require_clean()
    assert report.choices[0].everything
    if ctas > 8:
        assert report.choices[0].reason == "all: they communicate (cuda.grid_sync)"


def test_of_a_larger_grid_the_report_is_incomplete(monkeypatch):
    monkeypatch.setattr(cta_selection, "MAX_COMMUNICATING", 20)
    report = verify(program(24, threads=32), {}, runs=(("eager", 0),))
    (message,) = [f.message for f in report.findings if "CTAs ran" in f.message]
    assert "every CTA meets all others at cuda.grid_sync" in message


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"syncs": 0}, "RACE_READ_INFLIGHT"),
        ({"again": True}, "RACE_OVERWRITE_BUSY"),
        ({"who": "some blocks"}, "DEADLOCK"),
        ({"who": "not the first warp"}, "DEADLOCK"),
        ({"who": "some lanes"}, "WARP_CONVERGENCE"),
        ({"who": "the first warp"}, "RACE_READ_INFLIGHT"),
        ({"cooperative": False}, "COOPERATIVE_LAUNCH"),
        ({"cooperative": False, "ctas": 1}, "COOPERATIVE_LAUNCH"),
    ],
)
def test_what_is_wrong_is_named(change, rule):
    found = simulate(program(**change), inputs(change.get("ctas", 4)), "random", 1)
    assert rule in found.rules


def test_a_deadlock_says_who_has_come():
    found = simulate(program(who="some blocks"), inputs()).findings
    (message,) = [f.message for f in found if f.rule == "DEADLOCK"]
    assert "waits the grid barrier (3 of 4 CTAs arrived)" in message


def test_a_cooperative_launch_has_to_fit():
    room = 132 * 16
    large = program(room + 1)
    for report in (verify(large, {}), simulate(large, inputs(room + 1))):
        (found,) = report.findings
        assert found.rule == "LAUNCH_LIMITS"
        assert f"found {room + 1} thread blocks in a cooperative launch" in found.message
    assert "LAUNCH_LIMITS" in {f.rule for f in verify(program(33), inputs(33), num_sms=2).findings}
    assert "LAUNCH_LIMITS" in simulate(program(33), inputs(33), num_sms=2).rules
