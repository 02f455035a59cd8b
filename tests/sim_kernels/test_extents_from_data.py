"""Pipelines whose loop runs as often as a tensor says, another number of times in each block."""

from __future__ import annotations

import numpy as np
import pytest
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


def check(sch):
    x = np.random.default_rng(4).standard_normal((8, 32, 256)).astype("float32")
    result = simulate(sch.mod, {"X": x, "N": COUNTS}, target=TARGET)
    assert not result.findings, result.findings
    want = np.stack([x[i, :n].sum(0, dtype=np.float64) for i, n in enumerate(COUNTS)])
    np.testing.assert_allclose(result.outputs["Y"], want, rtol=1e-4, atol=1e-4)
    return x


@pytest.mark.parametrize("way", ["auto", "tma", "bulk", "cp_async"])
def test_tiles(way):
    """The verifier finds no fault, and says that it has not followed every number of turns."""
    sch = s_tir.Schedule(tiles)
    hs.async_copy(sch, sch.get_sblock("tile"), way)
    hs.pipeline(sch, sch.get_loops("add")[0], stages=3)
    x = check(sch)
    report = verify(sch.mod, {"X": x, "N": COUNTS}, target=TARGET, progress=False)
    assert report.verdict in ("clean", "incomplete"), report.table()


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
