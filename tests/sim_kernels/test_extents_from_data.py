"""Pipelines whose loop runs as often as a tensor says, another number of times in each block."""

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

import tvm_hopper
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import LoweringError
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


@pytest.mark.sampled(every=2)
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


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("way", ["tma", "cp_async", "none"])
def test_what_is_given_is_followed(way):
    """Turns, and values, are those that the tensor of this call asks for, in every order."""
    runs = [("eager", 0), ("lifo", 0), ("random", 1)]
    report = verify(
        tiled(way), inputs(), runs, target=TARGET, progress=False, against=tiles
    ).require_clean()
    assert any("by the contents of N in this call" in text for text in report.skeletons)
    assert "2048 of 2048 elements of Y" in str(report)


def test_what_is_not_given_is_asked_for():
    given = {"target": TARGET, "progress": False, "runs": [("eager", 0)]}
    report = verify(tiled("tma").mod, **given)  # the program says what N may hold
    assert report.verdict == "clean"
    report = verify(tiled("tma").mod, against=False, **given)
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


TWICE = """
@T.prim_func(s_tir=True)
def main(
    X: T.Buffer((16, 256), "float32"), N: T.Buffer((6,), "int32"), Y: T.Buffer((6, 256), "float32")
):
    for b in T.thread_binding(3, thread="blockIdx.x"):
        for q in range(2):
            with T.sblock("row"):
                vb, vq = T.axis.remap("SS", [b, q])
                T.reads(X[0:16, 0:256], N[COUNT], Y[vb * 2 + vq, 0:256])
                T.writes(Y[vb * 2 + vq, 0:256])
                tile = T.sblock_alloc_buffer((1, 256), "float32", scope="shared.dyn")
                for tx in T.thread_binding(128, thread="threadIdx.x"):
                    for half in range(2):
                        with T.sblock("init"):
                            vt = T.axis.spatial(256, half * 128 + tx)
                            T.reads()
                            T.writes(Y[vb * 2 + vq, vt])
                            Y[vb * 2 + vq, vt] = T.float32(0)
                for k in range(N[COUNT]):
                    for ax in range(256):
                        with T.sblock("tile"):
                            vk, va = T.axis.remap("SS", [k, ax])
                            T.reads(X[vk, va])
                            T.writes(tile[0, va])
                            tile[0, va] = X[vk, va]
                    for tx in T.thread_binding(128, thread="threadIdx.x"):
                        for half in range(2):
                            with T.sblock("add"):
                                vt = T.axis.spatial(256, half * 128 + tx)
                                T.reads(tile[0, 255 - vt], Y[vb * 2 + vq, vt])
                                T.writes(Y[vb * 2 + vq, vt])
                                Y[vb * 2 + vq, vt] = Y[vb * 2 + vq, vt] + tile[0, 255 - vt]
"""


def looped(count: str, way: str, roles=None):
    """Run a pipeline twice in a row in each thread block, as often as `count` says each time."""
    main = tvm.script.from_source(TWICE.replace("COUNT", count), extra_vars={"T": T})
    sch = s_tir.Schedule(tvm.IRModule({"main": main}))
    hs.async_copy(sch, sch.get_sblock("tile"), way)
    hs.pipeline(sch, sch.get_loops("add")[-3], stages=3, roles=roles)
    return sch


def check_looped(sch, rows: list[int], target: str) -> None:
    x = np.random.default_rng(6).integers(-8, 9, (16, 256)).astype("float32")
    result = simulate(sch.mod, {"X": x, "N": EACH}, target=target)
    assert not result.findings, result.findings
    want = np.stack([x[: EACH[n], ::-1].sum(0) for n in rows])
    np.testing.assert_array_equal(result.outputs["Y"], want)


EACH = np.array([0, 3, 1, 7, 2, 2], "int32")
A100 = "nvidia/nvidia-a100"


@pytest.mark.parametrize(
    ("way", "roles", "target"),
    [
        ("tma", None, TARGET),
        ("bulk", hs.Roles(1), TARGET),
        ("cp_async", hs.Roles(1), TARGET),
        ("cp_async", None, A100),
    ],
)
def test_a_number_that_is_the_same_each_time(way, roles, target):
    check_looped(looped("vb", way, roles), [0, 0, 1, 1, 2, 2], target)


@pytest.mark.parametrize("target", [TARGET, A100])
def test_numbers_that_differ_leave_the_copies_to_threads(target):
    """Slots are counted through all of a kernel's loops."""
    sch = looped("vb * 2 + vq", "auto")
    check_looped(sch, [0, 1, 2, 3, 4, 5], target)
    told = str(tvm_hopper.explain(sch, target))
    assert "made by threads" in told
    assert "differ from tile to tile; need the same number for each output tile" in told


def test_numbers_that_differ_are_refused_by_name():
    with pytest.raises(LoweringError, match=r"^loop k: found N\[.*\] iterations, which differ"):
        simulate(looped("vb * 2 + vq", "tma").mod, {}, target=TARGET)
