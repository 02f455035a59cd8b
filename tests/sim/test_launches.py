"""Several launches of one call: memory, coverage and first reads go over all of them, in order."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

from tests.sim_kernels.kernels import multiply_by_hand, scheduled
from tvm_hopper import schedule as hs
from tvm_hopper.errors import VerifyError
from tvm_hopper.sim import RunOptions, run_host
from tvm_hopper.sim.launch import host
from tvm_hopper.simulation import load, simulate, verify
from tvm_hopper.testing import workloads
from tvm_hopper.testing.tiling import module_of, product_of
from tvm_hopper.verification.launches import bound_launches, run_launches, ways_to_call

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
    i, j, k = sch.get_loops("C")
    launches, i, rows = sch.split(i, [None, 1, 64])
    j, columns = sch.split(j, [None, 64])
    k, depth = sch.split(k, [None, 64])
    sch.reorder(launches, j, i, k, rows, columns, depth)
    sch.bind(j, "blockIdx.x")
    sch.bind(i, "threadIdx.y")
    multiply_by_hand(sch, i, k, fused=True)
    program = load(sch.mod)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (rows, 64)).astype("float16") for rows in (128, 64))
    result = simulate(program, {"A": a, "B": b}).require_clean()
    assert np.array_equal(result.outputs["C"], a.astype("float64") @ b.astype("float64").T)
    assert len(result.blocks) == 2
    verify(program, runs=(("eager", 0), ("on_wait", 0), ("random", 1))).require_clean()


def two_kernels(blocks=8, first=None, mirrored=True):
    """Build a function whose first kernel fills a workspace that its second one reads."""
    size = blocks * 32
    first = blocks if first is None else first

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((size,), "float32"), C: T.Buffer((size,), "float32")):
        T.func_attr({"global_symbol": "main"})
        W = T.alloc_buffer((size,), "float32")
        for bx in T.thread_binding(first, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                W[bx * 32 + tx] = A[bx * 32 + tx] * T.float32(2)
        for bx in T.thread_binding(blocks, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                if mirrored:
                    C[bx * 32 + tx] = W[size - 1 - (bx * 32 + tx)] + T.float32(1)
                else:
                    C[bx * 32 + tx] = W[bx * 32 + tx] + T.float32(1)

    return load(main)


def numbers(blocks):
    return np.arange(blocks * 32, dtype="float32")


def test_a_workspace_passes_values_between_two_kernels():
    program = two_kernels()
    assert len(program.kernels) == 2
    a = numbers(8)
    result = simulate(program, {"A": a}).require_clean()
    assert np.array_equal(result.outputs["C"], a[::-1] * 2 + 1)
    assert set(result.outputs) == {"A", "C"}
    verify(program).require_clean()


@pytest.mark.parametrize("blocks", [8, 3000])
def test_chosen_blocks_of_both_kernels_speak_for_the_others(blocks):
    report = verify(
        two_kernels(blocks), runs=(("eager", 0), ("on_wait", 0), ("random", 1))
    ).require_clean()
    assert [len(choice.blocks) <= 8 for choice in report.choices] == [True, True]


def test_a_part_of_a_workspace_that_no_kernel_fills_is_found():
    result = simulate(two_kernels(8, first=7), {"A": numbers(8)})
    assert result.rules == {"UNINIT_READ"}
    assert result.findings[0].buffer == "W"


def test_a_workspace_may_share_its_name_with_an_argument():
    @T.prim_func(s_tir=True)
    def main(W: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        T.func_attr({"global_symbol": "main"})
        V = T.alloc_buffer((64,), "float32")
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            V[tx] = W[tx] + T.float32(1)
        for ty in T.thread_binding(64, thread="threadIdx.x"):
            C[ty] = V[63 - ty]

    sch = s_tir.Schedule(main)
    renamed = tvm.ir.load_json(tvm.ir.save_json(sch.mod).replace('"V"', '"W"'))
    result = simulate(load(renamed), {"W": A}).require_clean()
    assert np.array_equal(result.outputs["C"], A[::-1] + 1)


def test_a_workspace_of_another_device_is_refused():
    call = tvm.ir.Call(
        tvm.ir.Op.get("tirx.TVMBackendAllocWorkspace"), [1, 0, 256, 2, 32], ret_ty="handle"
    )
    with pytest.raises(VerifyError, match="found a workspace on device type 1; need CUDA's, 2"):
        run_host(tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(call)), {})


def test_memory_of_the_callers_allocator_is_a_workspace():
    mod, module = scheduled(
        {"m": 64, "n": 8, "k": 32}, (64, 8, 16), split_k=hs.SplitK(2, "caller"), stages=1
    )
    program = load(module)
    names = [p.name for p in mod["main"].params]
    values = dict(zip(names, workloads.make_inputs(mod, seed=1), strict=False))
    arrays = values | {names[-1]: np.zeros((64, 8), "float32")}
    launched = {
        way: [x.setup["grid"] for x in bound_launches(program, arrays, 132, way)]
        for way in (False, True)
    }
    assert launched == {False: [(1, 1, 2)], True: [(1, 1, 2), (1, 1, 2)]}
    without, having = (simulate(program, values, allocator=way) for way in (False, True))
    assert not without.findings
    assert not having.findings
    assert np.array_equal(without.outputs[names[-1]], having.outputs[names[-1]])
    assert ways_to_call(program, arrays, 132) == (False, True)
    assert ways_to_call(two_kernels(), {"A": numbers(8), "C": numbers(8)}, 132) == (False,)


@pytest.mark.parametrize("field", ["BITS", "NDIM", "DEVICE_TYPE"])
def test_other_memory_of_an_allocator_is_refused(field):
    fields = {host.DEVICE_TYPE: 2, host.CODE: 1, host.BITS: 8, host.NDIM: 1}
    fields |= {host.SHAPE: [{host.SHAPE_ELEMENT: 64}], getattr(host, field): 3}
    with pytest.raises(VerifyError, match="found a tensor of other memory; need bytes of a device"):
        host._CALLS["TVMFFIEnvTensorAlloc"]([fields], [{}])


def test_all_launches_share_one_budget():
    result = run_launches(
        bound_launches(two_kernels(), {"A": numbers(8), "C": numbers(8)}, 132),
        {"A": numbers(8), "C": numbers(8)},
        ["C"],
        [None, None],
        RunOptions(budget_s=0.0),
    )
    assert result.out_of_budget
    assert result.stopped


def test_the_last_launch_in_part_reads_what_a_whole_one_wrote():
    """A product of one CTA, and 16 CTAs of row sums behind it, of which two run."""
    a, b, c = product_of(64, 64, 64)
    j = te.reduce_axis((0, 64), "j")
    s = te.compute((64,), lambda i: te.sum(c[i, j], j), name="S")
    sch = s_tir.Schedule(module_of(a, b, c, s))
    row, *_ = sch.get_loops("S")
    for loop, axis in zip(sch.split(row, [None, 4]), ("blockIdx.x", "threadIdx.x"), strict=True):
        sch.bind(loop, axis)
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(64, 64, 64), stages=1, consumers=1))
    report = verify(sch.mod, max_ctas=2).require_clean()
    assert "2 of 16 CTAs" in str(report)
