"""Pipelines written by hand: a reader without a block, any bounds, one pipeline in another.

Each by every mechanism and by threads, on both chips: the same values, and no finding.
"""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.simulation import simulate

NOTES = {
    "software_pipeline_stage": [0, 2],
    "software_pipeline_order": [0, 1],
    "software_pipeline_async_stages": [0],
}
HEAD = """
@T.prim_func(s_tir=True)
def main(
    X: T.Buffer((80, 128), "float32"),
    P: T.Buffer((3,), "int32"),
    Y: T.Buffer((2, 128), "float32"),
):
    for bx in T.thread_binding(2, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("sum"):
                tile = T.sblock_alloc_buffer((4, 128), "float32", scope="shared.dyn")
                part = T.sblock_alloc_buffer((2, 128), "float32", scope="shared.dyn")
                acc = T.sblock_alloc_buffer((1,), "float32", scope="local")
                acc[0] = T.float32(0)
"""
LOOP = """
                for k in T.serial(BOUNDS, annotations=NOTES):
                    for i, j in T.grid(4, 128):
                        with T.sblock("load"):
                            T.sblock_attr({"tvm_hopper.async_copy": "WAY"})
                            tile[i, j] = X[ROW + i, j]
"""
READ = """
                    for i in range(4):
                        acc[0] = acc[0] + tile[i, tx] * T.Cast("float32", k)
"""
INNER = """
                    for n in T.serial(2, annotations=NOTES):
                        for i, j in T.grid(2, 128):
                            with T.sblock("part"):
                                T.sblock_attr({"tvm_hopper.async_copy": "WAY"})
                                part[i, j] = X[n * 2 + i, j]
                        for i in range(2):
                            acc[0] = acc[0] + tile[n * 2 + i, tx] * part[i, 127 - tx]
"""
TAIL = "\n                Y[bx, tx] = acc[0]\n"
TURNS = {
    "from 3": ("3, 9", "bx * 40 + k * 4", lambda b, p: range(3, 9)),
    "from -3": ("-3, 3", "bx * 40 + (k + 3) * 4", lambda b, p: range(-3, 3)),
    "as many as the block's number": ("bx", "bx * 40 + k * 4", lambda b, p: range(b)),
    "from and to what a tensor says": (
        "P[bx], P[bx + 1]",
        "k * 4",
        lambda b, p: range(p[b], p[b + 1]),
    ),
}
WAYS = ["tma", "bulk", "cp_async", "none"]
PAIRS = [("nvidia/nvidia-h200", x) for x in WAYS] + [("nvidia/nvidia-a100", x) for x in WAYS[2:]]
INPUTS = {
    "X": np.random.default_rng(5).integers(-8, 9, (80, 128)).astype("float32"),
    "P": np.array([0, 1, 20], "int32"),
}


def result(text, way, target):
    text = text.replace("WAY", way).replace("NOTES", repr(NOTES))
    ran = simulate(tvm.script.from_source(text), INPUTS, target=target)
    assert not ran.findings, ran.findings
    return ran.outputs["Y"]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("target", "way"), PAIRS)
@pytest.mark.parametrize("turns", TURNS)
def test_bounds(turns, way, target):
    bounds, row, values = TURNS[turns]
    text = HEAD + LOOP.replace("BOUNDS", bounds).replace("ROW", row) + READ + TAIL
    x, p = INPUTS["X"].astype("float64"), INPUTS["P"]
    want = np.zeros((2, 128))
    for b in range(2):
        for k in values(b, p):
            first = eval(row, {"bx": b, "k": k})
            want[b] += k * x[first : first + 4].sum(0)
    np.testing.assert_array_equal(result(text, way, target), want)


@pytest.mark.parametrize(("target", "way"), PAIRS)
def test_a_pipeline_in_a_pipeline(way, target):
    loop = LOOP.replace("BOUNDS", "5").replace("ROW", "bx * 40 + k * 4")
    x = INPUTS["X"].astype("float64")
    want = (x.reshape(2, 10, 4, 128)[:, :5] * x[:4, ::-1]).sum((1, 2))
    np.testing.assert_array_equal(result(HEAD + loop + INNER + TAIL, way, target), want)


SYMBOLIC = """
@T.prim_func(s_tir=True)
def main(x: T.handle, y: T.handle):
    n = T.int32()
    X = T.match_buffer(x, (n, 128), "float32")
    Y = T.match_buffer(y, (n, 128), "float32")
    for bx in T.thread_binding(n // 32, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("sum"):
                tile = T.sblock_alloc_buffer((4, 128), "float32", scope="shared.dyn")
"""
ADD = """
                    for i in range(4):
                        Y[bx * 32 + k * 4 + i, tx] = tile[i, tx] + T.float32(1)
"""


@pytest.mark.parametrize(("target", "way"), [pair for pair in PAIRS if pair[1] != "none"])
@pytest.mark.parametrize("rows", [0, 5, 70])
def test_a_grid_that_may_have_no_block(rows, way, target):
    """As many blocks as there are whole tiles, none of five rows: nothing is launched then."""
    loop = LOOP.replace("BOUNDS", "8").replace("ROW", "bx * 32 + k * 4").replace("WAY", way)
    text = SYMBOLIC + loop.replace("NOTES", repr(NOTES)) + ADD
    given = {"X": INPUTS["X"][:rows], "Y": np.zeros((rows, 128), "float32")}
    ran = simulate(tvm.script.from_source(text), given, target=target)
    assert not ran.findings, ran.findings
    want = np.zeros((rows, 128))
    want[: rows // 32 * 32] = INPUTS["X"][: rows // 32 * 32] + 1
    np.testing.assert_array_equal(ran.outputs["Y"], want)


@pytest.mark.parametrize("target", ["nvidia/nvidia-h200", "nvidia/nvidia-a100"])
def test_a_tile_of_one_element_is_copied_by_one_thread(target):
    """TVM drops loops of one turn: what is left of the copy names no thread, and has no loop."""
    loop = LOOP.replace("T.grid(4, 128)", "T.grid(1, 1)").replace("BOUNDS", "5")
    text = HEAD.replace(
        "tile = T.sblock_alloc_buffer((4, 128)", "tile = T.sblock_alloc_buffer((1, 1)"
    )
    text += loop.replace("ROW", "bx * 40 + k * 4")
    text += "\n                    acc[0] = acc[0] + tile[0, 0]\n" + TAIL
    want = INPUTS["X"].reshape(2, 10, 4, 128)[:, :5, 0, 0].sum(1)
    got = result(text, "none", target)
    np.testing.assert_array_equal(got, np.repeat(want[:, None], 128, 1))


@pytest.mark.parametrize("stages", [[0, 1, 0, 1], [0, 1, 0, 2]])
@pytest.mark.parametrize("target", ["nvidia/nvidia-h200", "nvidia/nvidia-a100"])
def test_threads_that_read_what_others_store(stages, target):
    """TVM gives `tile[tx]` no slots beside `tile[127 - tx]`, which one thread finds elsewhere."""
    a, b = (te.placeholder((24, 128), "float32", name=x) for x in "AB")
    twice = te.compute(a.shape, lambda i, j: a[i, 127 - j] * te.const(2, "float32"), name="X")
    c = te.compute(a.shape, lambda i, j: twice[i, 127 - j] + b[i, j], name="C")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    i, j = sch.get_loops("C")
    block, step, row = sch.split(i, [2, None, 4])
    sch.bind(block, "blockIdx.x")
    middle = sch.get_sblock("X")
    sch.set_scope(middle, 0, "shared.dyn")
    tile_b = sch.cache_read("C", 1, "shared.dyn")
    sch.compute_at(middle, step)
    tile_a = sch.cache_read(middle, 0, "shared.dyn")
    sch.compute_at(tile_b, step)
    sch.compute_at(tile_a, step)
    for loops in ([row, j], sch.get_loops(middle)[2:]):
        sch.bind(sch.split(sch.fuse(*loops), [None, 128])[1], "threadIdx.x")
    for tile in (tile_a, tile_b):
        hs.async_copy(sch, tile, "none")
    sch.annotate(step, "software_pipeline_stage", stages)
    sch.annotate(step, "software_pipeline_order", [0, 1, 2, 3])
    rng = np.random.default_rng(2)
    given = {x: rng.integers(-9, 9, (24, 128)).astype("float32") for x in "AB"}
    result = simulate(sch.mod, given, target=target)
    assert result.verdict == "clean", result.findings
    np.testing.assert_array_equal(result.outputs["C"], given["A"] * 2 + given["B"])
