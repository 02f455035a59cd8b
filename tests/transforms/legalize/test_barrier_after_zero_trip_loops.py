"""BarrierAfterZeroTripLoops: threads meet behind loops that may have no turns."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from tests.transforms.scripts import check, parse, run
from tvm_hopper import schedule as hs
from tvm_hopper.pipeline import passes
from tvm_hopper.simulation import simulate
from tvm_hopper.transforms.legalize.barrier_after_zero_trip_loops import BarrierAfterZeroTripLoops

KERNEL = """
def func(n: T.int32, N: T.Buffer((4,), "int32"), A: T.Buffer((4096,), "float32")):
    with T.launch_thread("blockIdx.x", 4) as bx:
        OURS
        with T.launch_thread("threadIdx.x", 128) as tx:
            tile = T.alloc_buffer((128,), scope="shared.dyn")
            own = T.alloc_buffer((1,), "int32", scope="local")
            turns: T.let[T.int32] = TURNS
            if GUARD:
                for k in range(EXTENT):
                    tile[127 - tx] = A[k * 128 + tx]
                BARRIER
            A[tx] = tile[tx]
"""


def kernel(barrier=False, extent="turns", turns="n - 1", guard="n > 3", ours=False, shared=True):
    text = KERNEL if shared else KERNEL.replace("tile[127 - tx] = A", "own[0] = N")
    text = text.replace("                BARRIER\n", BARRIER if barrier else "")
    mark = 'T.attr("tvm_hopper", "hand_threaded", 1)'
    text = text.replace("OURS\n        ", mark + "\n        " if ours else "")
    return parse(text, ("EXTENT", extent), ("TURNS", turns), ("GUARD", guard))


BARRIER = '                T.tvm_storage_sync("shared.dyn")\n'


@pytest.mark.parametrize(
    "given",
    [{}, {"extent": "N[bx]"}, {"extent": "n % 4", "guard": "N[bx] > 2"}, {"turns": "N[bx]"}],
)
def test_a_loop_that_may_have_no_turns(given):
    want = kernel(barrier=True, **given)
    check(run(kernel(**given), BarrierAfterZeroTripLoops()), want)
    assert run(want, BarrierAfterZeroTripLoops()).same_as(want)


@pytest.mark.parametrize(
    "given",
    [
        {"extent": "4"},
        {"extent": "n % 4 + 1"},
        {"extent": "tx"},
        {"turns": "tx"},
        {"extent": "own[0]"},
        {"guard": "tx < 3"},
        {"guard": "own[0] < 3"},
        {"shared": False},
        {"ours": True},
    ],
    ids=str,
)
def test_what_stays(given):
    """Loops that run, threads that do not all come there, kernels that we synchronise."""
    before = kernel(**given)
    assert run(before, BarrierAfterZeroTripLoops()).same_as(before)


@T.prim_func(s_tir=True)
def flipped(
    A: T.Buffer((4, 16, 128), "float32"),
    N: T.Buffer((4,), "int32"),
    C: T.Buffer((4, 128), "float32"),
):
    for b in T.thread_binding(4, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("row"):
                vb, vt = T.axis.remap("SS", [b, tx])
                T.reads(A[vb, 0:16, 0:128], N[vb])
                T.writes(C[vb, vt])
                s = T.sblock_alloc_buffer((1,), "float32", scope="local")
                s[0] = T.float32(0)
                for k in range(N[vb]):
                    with T.sblock("trip"):
                        vk = T.axis.opaque(16, k)
                        T.reads(A[vb, vk, 0:128], s[0])
                        T.writes(s[0])
                        t = T.sblock_alloc_buffer((1, 128), "float32", scope="shared.dyn")
                        for i, j in T.grid(1, 128):
                            with T.sblock("load"):
                                vi, vj = T.axis.remap("SS", [i, j])
                                t[vi, vj] = A[vb, vk + vi, vj]
                        for i in range(1):
                            with T.sblock("add"):
                                vi = T.axis.opaque(1, i)
                                T.reads(t[vi, 127 - vt], s[0])
                                T.writes(s[0])
                                s[0] = s[0] + t[vi, 127 - vt]
                C[vb, vt] = s[0]


def simulated(stages: int = 3):
    sch = s_tir.Schedule(tvm.IRModule({"main": flipped}))
    hs.async_copy(sch, sch.get_sblock("load"), "none")
    hs.pipeline(sch, sch.get_loops("trip")[-1], stages=stages)
    given = np.arange(4 * 16 * 128, dtype="float32").reshape(4, 16, 128)
    counts = np.array([0, 1, 2, 9], "int32")
    result = simulate(sch.mod, {"A": given, "N": counts}, target="nvidia/nvidia-h200")
    want = np.stack([given[b, :n, ::-1].sum(0) for b, n in enumerate(counts)])
    return result, np.array_equal(result.outputs["C"], want)


def test_a_pipeline_of_fewer_turns_than_stages():
    result, is_right = simulated()
    assert result.verdict == "clean", result.findings
    assert is_right


def test_without_it_the_simulator_objects(monkeypatch):
    rest = [
        p for p in passes.late_passes() if p.info.name != "tvm_hopper.BarrierAfterZeroTripLoops"
    ]
    monkeypatch.setattr(passes, "late_passes", lambda: rest)
    result, _ = simulated()
    assert result.findings
