"""Which CTAs speak for a launch."""

import numpy as np
import pytest
from tvm import s_tir
from tvm.script import tirx as T

from tvm_hopper import schedule as hs
from tvm_hopper.sim.cta_selection import choose_blocks
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.launch.host import run_host
from tvm_hopper.simulation import load, verify
from tvm_hopper.testing import workloads

from .hand_threaded import I32, hand_threaded
from .kernels import lower


def setup_of(program, inputs=None):
    values, _ = complete(program.arguments, inputs or {})
    (launch,) = run_host(program.host, values)
    func = program.kernels[launch.kernel]
    return func, launch.bind(func)


def matmul(m, n, **config):
    sch = s_tir.Schedule(workloads.matmul(m, n, 128))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 128, 64), stages=2, consumers=2, **config))
    return load(sch.mod)


def test_a_small_launch_runs_whole():
    func, setup = setup_of(matmul(200, 300))
    choice = choose_blocks(func, setup, 8)
    assert choice.everything
    assert choice.covered
    assert choice.only_written == {"C"}


def test_a_large_one_runs_ends_edges_or_kinds():
    func, setup = setup_of(matmul(4096, 4096))
    choice = choose_blocks(func, setup, 8)
    grid = setup["grid"]
    assert choice.covered
    assert not choice.everything
    assert (0, 0, 0) in choice.blocks
    assert tuple(extent - 1 for extent in grid) in choice.blocks
    assert len(choice.blocks) <= 8


def grid_kernel(body, blocks=200):
    @hand_threaded(32, grid=blocks)
    def main(A: I32[200], C: I32[200], bx, tx):
        if body == "plain" and tx == 0:
            C[bx] = A[bx]
        if body == "trips":
            for _ in T.serial((500 - bx) // 200):
                T.tvm_storage_sync("shared")
        if body == "data":
            for _ in T.serial(A[bx]):
                T.tvm_storage_sync("shared")
        if body == "atomic" and tx == 0:
            T.evaluate(T.cuda.atomic_add(T.address_of(C[0]), T.int32(1)))
        if body == "ticket" and tx == 0:
            C[bx] = T.cuda.atomic_add(T.address_of(A[0]), T.int32(1))

    return lower(main)


def test_each_combination_of_trip_counts_is_represented():
    func, setup = setup_of(grid_kernel("trips"))
    choice = choose_blocks(func, setup, 8)
    assert choice.covered
    assert {(500 - block[0]) // 200 for block in choice.blocks} == {1, 2}


def test_trip_counts_that_data_decide_are_not_covered():
    func, setup = setup_of(grid_kernel("data"))
    choice = choose_blocks(func, setup, 8)
    assert not choice.covered
    (finding,) = choice.findings()
    assert finding.rule == "INCOMPLETE"
    assert "of 200 CTAs ran" in finding.message


def test_blocks_that_hear_of_each_other_run_together_or_are_incomplete():
    func, setup = setup_of(grid_kernel("ticket"))
    assert choose_blocks(func, setup, 8).everything
    func, setup = setup_of(grid_kernel("ticket", blocks=2000))
    assert not choose_blocks(func, setup, 8).covered


def test_blocks_that_only_add_do_not_hear_of_each_other():
    func, setup = setup_of(grid_kernel("atomic"))
    choice = choose_blocks(func, setup, 8)
    assert choice.covered
    assert not choice.everything


@pytest.mark.parametrize("body", ["plain", "trips"])
def test_a_covered_launch_is_clean(body):
    inputs = {"A": np.ones(200, "int32")}
    if body == "trips":  # stores nothing
        inputs["C"] = np.zeros(200, "int32")
    verify(grid_kernel(body), inputs).require_clean()
