"""Pipelines whose loop runs as often as a tensor says, another number of times in each block."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper import schedule as hs
from tvm_hopper.requests.keys import CONSUMERS
from tvm_hopper.simulation import simulate, verify

TARGET = "nvidia/nvidia-h200"
COUNTS = np.array([0, 1, 2, 3, 5, 17, 31, 32], "int32")  # around a ring of three slots


@T.prim_func(s_tir=True)
def tiles(
    X: T.Buffer((8, 32, 256), "float32"),
    N: T.Buffer((8,), "int32"),
    Y: T.Buffer((8, 256), "float32"),
):
    for b in T.thread_binding(8, thread="blockIdx.x"):
        with T.sblock("row"):
            vb = T.axis.spatial(8, b)
            T.reads(X[vb, 0:32, 0:256], N[vb], Y[vb, 0:256])
            T.writes(Y[vb, 0:256])
            tile = T.sblock_alloc_buffer((1, 1, 256), "float32", scope="shared.dyn")
            for tx in T.thread_binding(256, thread="threadIdx.x"):
                with T.sblock("init"):
                    vt = T.axis.spatial(256, tx)
                    T.reads()
                    T.writes(Y[vb, vt])
                    Y[vb, vt] = T.float32(0)
            for k in range(N[vb]):
                for ax in range(256):
                    with T.sblock("tile"):
                        vk = T.axis.spatial(32, k)
                        va = T.axis.spatial(256, ax)
                        T.reads(X[vb, vk, va])
                        T.writes(tile[0, 0, va])
                        tile[0, 0, va] = X[vb, vk, va]
                for tx in T.thread_binding(256, thread="threadIdx.x"):
                    with T.sblock("add"):
                        vk = T.axis.reduce(32, k)
                        vt = T.axis.spatial(256, tx)
                        T.reads(tile[0, 0, vt], Y[vb, vt])
                        T.writes(Y[vb, vt])
                        Y[vb, vt] = Y[vb, vt] + tile[0, 0, vt]


@T.prim_func(s_tir=True)
def elements(
    X: T.Buffer((8, 32, 256), "float32"),
    N: T.Buffer((8,), "int32"),
    Y: T.Buffer((8, 256), "float32"),
):
    for b in T.thread_binding(8, thread="blockIdx.x"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("row"):
                vb, vt = T.axis.remap("SS", [b, tx])
                T.reads(X[vb, 0:32, vt], N[vb])
                T.writes(Y[vb, vt])
                total = T.sblock_alloc_buffer((1,), "float32", scope="local")
                total[0] = T.float32(0)
                for k in range(N[vb]):
                    with T.sblock("add"):
                        vk = T.axis.reduce(32, k)
                        T.reads(X[vb, vk, vt], total[0])
                        T.writes(total[0])
                        total[0] = total[0] + X[vb, vk, vt]
                Y[vb, vt] = total[0]


ALL = ["auto", "tma", "bulk", "cp_async", "none"]


def tiled(way, roles=None):
    sch = s_tir.Schedule(tiles)
    hs.async_copy(sch, sch.get_sblock("tile"), way)
    hs.pipeline(sch, sch.get_loops("add")[0], stages=3, roles=roles)
    return sch


def inputs():
    x = np.random.default_rng(4).standard_normal((8, 32, 256)).astype("float32")
    return {"X": x, "N": COUNTS}


@pytest.mark.parametrize("way", ALL)
@pytest.mark.parametrize("target", [TARGET, "nvidia/nvidia-a100"])
def test_tiles(way, target):
    if target != TARGET and way in ("tma", "bulk"):
        pytest.skip("sm_80 lacks it, and says so")
    sch, given = tiled(way), inputs()
    result = simulate(sch.mod, given, target=target)
    assert not result.findings, result.findings
    want = np.stack([x[:n].sum(0, dtype=np.float64) for x, n in zip(*given.values(), strict=True)])
    np.testing.assert_allclose(result.outputs["Y"], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["tma", "cp_async", "none"])
def test_what_is_given_is_followed(way):
    """Turns, and values, are those that the tensor of this call asks for, in every order."""
    runs = [("eager", 0), ("lifo", 0), ("random", 1)]
    report = verify(tiled(way), inputs(), runs, target=TARGET, progress=False, against=tiles)
    assert report.verdict == "clean", report.table()
    assert any("by what N holds in this call" in text for text in report.skeletons)
    assert "2048 of 2048 elements of Y" in str(report)


def test_what_is_not_given_is_asked_for():
    report = verify(tiled("tma").mod, target=TARGET, progress=False, runs=[("eager", 0)])
    assert report.verdict != "clean"
    assert any("give N (inputs=) to follow it" in one.message for one in report.findings)


@pytest.mark.parametrize("target", [TARGET, "nvidia/nvidia-a100"])
def test_threads_wait_for_no_groups(target):
    """TVM would wait for as many as a loop of unknown extent has left, which is no immediate."""
    text = tvm.compile(tiled("none").mod, target=target).mod.imports[0].inspect_source()
    assert "cp.async" not in text
    assert "__syncthreads" in text


def test_threads_around_the_block_around_the_loop_are_seen():
    """A reduction from shared memory is no product where threads stand around its block."""
    sch = s_tir.Schedule(elements)
    (loop,) = sch.get_loops("add")
    tile = sch.cache_read("add", 0, "shared.dyn")
    sch.compute_at(tile, loop)
    hs.async_copy(sch, tile)
    hs.pipeline(sch, loop, stages=3)
    loops = ir.find_all(sch.mod["main"].body, ir.For)
    assert loops
    assert not any(CONSUMERS in x.annotations for x in loops)
