"""Grids of more thread blocks than are there together: memory, findings, refusals."""

import numpy as np
import pytest
from tvm import s_tir
from tvm.script import tirx as T

from tvm_hopper import schedule as hs
from tvm_hopper.sim import run as sim_run
from tvm_hopper.sim.kernel_code import touched_tensors
from tvm_hopper.sim.loop_cuts.plan import plan_cuts
from tvm_hopper.sim.machine import machine as sim_machine, pages
from tvm_hopper.sim.races.clocks import Bundle
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import memory_bound
from tvm_hopper.verification import verifier

BLOCKS = 64


@T.prim_func(s_tir=True)
def one_place(X: T.Buffer((BLOCKS * 32,), "float32"), Y: T.Buffer((32,), "float32")):
    for i in T.thread_binding(BLOCKS, thread="blockIdx.x"):
        for j in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("Y"):
                k, t = T.axis.remap("SS", [i, j])
                Y[t] = X[k * 32 + t]


def copy(rows=64, columns=1024):
    sch = s_tir.Schedule(memory_bound.copy(rows, columns))
    hs.pointwise(sch)
    return sch


@pytest.fixture
def few_warps(monkeypatch):
    monkeypatch.setattr(sim_machine, "MOST_WARPS", 8)
    monkeypatch.setattr(sim_run, "MOST_WARPS", 8)


@pytest.mark.parametrize("policy", ["on_wait", "lifo", "random", "in_turn"])
def test_clusters_run_as_there_is_room_for_them(few_warps, policy):
    x = np.arange(64 * 1024).reshape(64, 1024).astype("bfloat16")
    result = simulate(copy(), {"X": x}, policy)
    assert result.verdict == "clean", result.findings
    assert np.array_equal(result.outputs["Y"], x)


@pytest.mark.parametrize("policy", ["on_wait", "random"])
def test_thread_blocks_that_were_never_there_together_race(few_warps, policy):
    x = np.zeros(BLOCKS * 32, np.float32)
    result = simulate(one_place, {"X": x}, policy)
    assert {one.rule for one in result.findings} == {"RACE_WRITE_WRITE"}


def test_a_clock_holds_what_it_has_heard_of():
    one, other = Bundle(4).generic, Bundle(4).generic
    one.epochs[4 * 10**6 + 1] = 3
    assert len(one.epochs.parts) == 1
    assert not other.holds(one)
    other.join(one)
    assert other.holds(one)
    other.epochs[0] = 1
    assert one.epochs[0] == 0
    other.meet(one)
    assert (other.epochs[0], other.epochs[4 * 10**6 + 1]) == (0, 3)


def test_a_grid_that_does_not_fit_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(sim_run, "MAX_BYTES", 1 << 16)
    (found,) = simulate(copy(), {"X": np.zeros((64, 1024), "bfloat16")}).findings
    assert found.rule == "INCOMPLETE"
    assert "CTAs need about" in found.message
    assert "blocks=[(0, 0, 0), (" in found.hint


def test_a_kernel_with_cache_hints_runs_without_values():
    program = load(copy(4096, 4096))
    (func,) = program.kernels.values()
    assert "createpolicy" in str(func)
    assert plan_cuts(func, {}).refused == ""
    params = {param.name: np.zeros(1) for param in func.params}
    stored, loaded = touched_tensors(func, params)
    assert not stored & loaded


def test_a_number_is_no_tensor_that_a_kernel_touches():
    program = load(copy())
    (func,) = program.kernels.values()
    everything = touched_tensors(func, {param.name: 1 for param in func.params})
    assert everything == (set(), set())


def test_a_large_tensor_shares_the_pages_of_what_it_repeats(monkeypatch):
    monkeypatch.setattr(pages, "LARGE", 1 << 20)
    monkeypatch.setattr(pages, "PAGES_SHARED", 3)
    flat, pattern = pages.no_bytes((1 << 20) + 24).view(np.int32), np.arange(701, dtype=np.int32)
    pages.fill_repeating(flat, pattern)
    part = 3 * pages.mmap.PAGESIZE // 4
    assert np.array_equal(flat[:part], np.resize(pattern, part))
    assert np.array_equal(flat[part : 2 * part], flat[:part])
    flat[0] = -1  # pages are shared till one is written
    assert flat[part] == 0
    assert flat[-1] >= 0


def test_tensors_that_do_not_fit_into_memory_are_one_clear_verdict(monkeypatch):
    monkeypatch.setattr(pages, "available_bytes", lambda: 0)
    report = verify(copy(), runs=[("eager", 0)], progress=False)
    assert report.verdict == "incomplete"
    assert "fit into memory" in str(report)

    def full(*_):
        raise MemoryError("a tensor of 5 GiB")

    monkeypatch.setattr(verifier, "fill_random", full)
    monkeypatch.setattr(verifier, "check_indices", full)
    (found,) = verify(copy(), runs=[("eager", 0)], progress=False).findings
    assert found.rule == "INCOMPLETE"
    assert "a tensor of 5 GiB" in found.message
