"""PropagateTileGuards: what reads a tile has the condition of what fills it."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.transforms.scripts import check, check_other_kernel_stays, parse, run
from tvm_hopper import ir, schedule as hs
from tvm_hopper.simulation import verify
from tvm_hopper.transforms.prepare.propagate_tile_guards import PropagateTileGuards, plan_conditions

KERNEL = """
def func(n: T.int32, A: T.Buffer((8, 64), "float32"), C: T.Buffer((8, 64), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        with T.sblock("kernel"):
            tile = T.sblock_alloc_buffer((8, 64), scope="shared.dyn")
            other = T.sblock_alloc_buffer((8, 64), scope="shared.dyn")
            for i in range(4):
                for tx in T.thread_binding(128, thread="threadIdx.x"):
                    with T.sblock("fill", where=FILL):
                        tile[i * 2 + tx // 64, tx % 64] = A[i * 2 + tx // 64, tx % 64]
            for i, j in T.grid(8, 64):
                with T.sblock("hand_on", where=HAND_ON):
                    other[i, j] = HANDED
            for i, j in T.grid(8, 64):
                with T.sblock("store", where=STORE):
                    C[i, j] = other[i, j]
"""
OWN = "tx % 64 < 60 and bx < 1"


def kernel(fill=OWN, hand_on="", store="", handed="tile[i, j]"):
    changes = [("FILL", fill), ("HANDED", handed)]
    for name, condition in (("HAND_ON", hand_on), ("STORE", store)):
        changes.append((name, condition) if condition else (f", where={name}", ""))
    return parse(KERNEL, *changes)


def test_from_one_tile_to_the_next():
    want = kernel(hand_on="bx < 1", store="bx < 1")
    check(run(kernel(), PropagateTileGuards()), want)
    check_other_kernel_stays(kernel(), want, PropagateTileGuards())
    assert not plan_conditions(ir.kernels(want)[0])


def test_the_condition_of_a_whole_block_is_the_block_s():
    def store(condition, body):
        text = KERNEL.replace("C[i, j] = other[i, j]", body).replace("STORE", condition)
        return parse(
            text, ("FILL", "tx % 64 < 60"), (", where=HAND_ON", ""), ("HANDED", "tile[i, j]")
        )

    plain = "C[i, j] = other[i, j]"
    inside = store("n < 9", f"if i < n:\n                        {plain}")
    check(run(inside, PropagateTileGuards()), store("n < 9 and i < n", plain))
    otherwise = store(
        "n < 9",
        f"if i < n:\n                        {plain}\n"
        "                    else:\n                        C[i, j] = T.float32(0)",
    )
    assert run(otherwise, PropagateTileGuards()).same_as(otherwise)


def test_beside_a_condition_of_its_own():
    got = run(kernel(f"{OWN} and bx < n", hand_on="i < 7"), PropagateTileGuards())
    check(
        got,
        kernel(
            f"{OWN} and bx < n", hand_on="i < 7 and bx < 1 and bx < n", store="bx < 1 and bx < n"
        ),
    )


@pytest.mark.parametrize(
    "same",
    [
        {"fill": "tx < 60"},  # of threads: others fill the rest
        {"fill": "i * 2 + tx // 64 < 7"},  # of elements
        {"fill": "A[0, 0] < T.float32(1)"},  # of data
        {"handed": "T.if_then_else(bx < 1, tile[i, j], T.float32(0))"},  # not always read
    ],
    ids=["threads", "elements", "data", "choice"],
)
def test_what_stays(same):
    before = kernel(**same)
    assert run(before, PropagateTileGuards()).same_as(before)


def test_two_that_fill_under_conditions_of_their_own():
    """Of two statements the tile has what either fills."""
    text = KERNEL.replace('"hand_on"', '"again"').replace(
        "other[i, j] = HANDED", "tile[i, j] = A[i, j]"
    )
    text = text.replace("C[i, j] = other[i, j]", "C[i, j] = tile[i, j]")
    before = parse(text, ("FILL", OWN), ("HAND_ON", "bx >= 1"), (", where=STORE", ""))
    assert run(before, PropagateTileGuards()).same_as(before)


@pytest.mark.parametrize("store", ["tma", "bulk", None])
def test_more_thread_blocks_than_tiles(store):
    """TVM's reverse_compute_at drops the condition where a tensor is one tile."""
    a = te.placeholder((8, 64), "float32", name="A")
    c = te.compute(a.shape, lambda i, j: a[i, j] * te.const(2, "float32"), name="C")
    mod = tvm.IRModule({"main": te.create_prim_func([a, c])})
    sch = s_tir.Schedule(mod)
    tile, out = sch.cache_read("C", 0, "shared.dyn"), sch.cache_write("C", 0, "shared.dyn")
    i, j = sch.get_loops("C")
    rows, row = sch.split(i, [None, 8])
    columns, column = sch.split(j, [None, 64])
    sch.reorder(rows, columns, row, column)
    step, block = sch.split(sch.fuse(rows, columns), [None, 3])
    sch.reorder(block, step)
    sch.bind(block, "blockIdx.x")
    sch.compute_at(tile, step)
    hs.async_copy(sch, tile)
    sch.reverse_compute_at(out, step)
    nests = [sch.fuse(row, column)]
    if store is None:
        nests.append(sch.fuse(*sch.get_loops(out)[-2:]))
    else:
        hs.async_store(sch, out, store)
    for nest in nests:
        sch.bind(sch.split(nest, [None, 128])[1], "threadIdx.x")
    hs.pipeline(sch, step, stages=2)
    report = verify(sch.mod, target="nvidia/nvidia-h200", against=mod).require_clean()
    assert np.all(report.values.checked)
