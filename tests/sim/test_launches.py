"""Several launches of one call: memory, coverage and first reads go over all of them, in order."""

import numpy as np
import pytest
from tvm import s_tir
from tvm.script import tirx as T

from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import workloads

from .kernels import lower


def halves(first, second, reads_c=False):
    """Build two launches over 64 floats of C: each writes the elements [start, stop) given."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        T.func_attr({"global_symbol": "main"})
        with T.attr(T.int32(0), "first", 1):
            T.launch_thread("blockIdx.x", 1)
            tx = T.launch_thread("threadIdx.x", 64)
            if tx >= first[0] and tx < first[1]:
                C[tx] = A[tx] + T.float32(1)
        with T.attr(T.int32(0), "second", 1):
            T.launch_thread("blockIdx.x", 1)
            ty = T.launch_thread("threadIdx.x", 64)
            if ty >= second[0] and ty < second[1]:
                if reads_c:
                    C[ty] = C[63 - ty] * T.float32(2)
                else:
                    C[ty] = A[ty] + T.float32(1)

    return lower(main)


A = np.arange(64, dtype="float32")


@pytest.mark.parametrize("policy", ["eager", "on_wait", "random"])
def test_two_launches_that_write_half_each_cover_the_output(policy):
    program = halves((0, 32), (32, 64))
    assert len(program.kernels) == 2
    result = simulate(program, {"A": A}, policy=policy).require_clean()
    assert np.array_equal(result.outputs["C"], A + 1)


def test_a_hole_that_no_launch_fills_is_found_once_with_its_elements():
    result = simulate(halves((0, 30), (32, 60)), {"A": A})
    (finding,) = result.findings
    assert finding.rule == "OUTPUT_COVERAGE"
    assert finding.message == "C: 6 of 64 elements are never written"
    assert finding.byte_range == (30 * 4, 64 * 4)


def test_a_launch_reads_what_an_earlier_one_wrote():
    result = simulate(halves((0, 32), (32, 64), reads_c=True), {"A": A}).require_clean()
    assert np.array_equal(result.outputs["C"][32:], (A + 1)[:32][::-1] * 2)


def test_a_launch_that_reads_what_none_wrote_is_found():
    result = simulate(halves((0, 30), (32, 64), reads_c=True), {"A": A})
    assert result.rules == {"UNINIT_READ", "OUTPUT_COVERAGE"}


def test_nothing_is_judged_behind_a_launch_that_cannot_be_evaluated(monkeypatch):
    from tvm_hopper.sim.machine.machine import Machine

    def broken(self):
        raise TypeError("no such value")

    monkeypatch.setattr(Machine, "_run_all", broken)
    result = simulate(halves((0, 32), (32, 64)), {"A": A})
    assert [f.rule for f in result.findings] == ["INCOMPLETE"]
    assert "an asynchronous operation: TypeError: no such value" in result.findings[0].message


def test_one_kernel_launched_in_a_host_loop_covers_the_output():
    sch = s_tir.Schedule(workloads.matmul(128, 64, 64))
    block = sch.get_sblock("C")
    i, j, k = sch.get_loops(block)
    launches, i, rows = sch.split(i, [None, 1, 64])
    j, columns = sch.split(j, [None, 64])
    k, depth = sch.split(k, [None, 64])
    sch.reorder(launches, j, i, k, rows, columns, depth)
    sch.bind(j, "blockIdx.x")
    sch.bind(i, "threadIdx.y")
    store = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(store, i)
    for operand in (0, 1):
        copy = sch.cache_read(block, operand, "shared.dyn")
        sch.compute_at(copy, k)
        hs.async_copy(sch, copy)
    hs.fuse_epilogue(sch, store)
    hs.wgmma(sch, block)
    hs.pipeline(sch, k, stages=1)
    program = load(sch.mod)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (rows, 64)).astype("float16") for rows in (128, 64))
    result = simulate(program, {"A": a, "B": b}).require_clean()
    assert np.array_equal(result.outputs["C"], a.astype("float64") @ b.astype("float64").T)
    assert len(result.blocks) == 2
    verify(program, runs=(("eager", 0), ("on_wait", 0), ("random", 1))).require_clean()
