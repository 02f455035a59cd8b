"""What is asked of thread blocks reaches them where a loop stands right inside of theirs.

Stock UnifyThreadBinding gave the annotations of a bound loop to that loop, in place of its own: a
pipeline right inside of persistent thread blocks was lost, and an error spoke of another loop.
"""

import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

import tvm_hopper
from tests.transforms.scripts import check
from tvm_hopper import schedule as hs
from tvm_hopper.requests.axis_notes import set_notes_apart


@T.prim_func(private=True, s_tir=True)
def before(A: T.Buffer((4, 8, 2), "float32"), B: T.Buffer((4, 8, 2), "float32")):
    for by in T.thread_binding(4, thread="blockIdx.y", annotations={"tvm_hopper.early_launch": 1}):
        for bx in T.thread_binding(
            8, thread="blockIdx.x", annotations={"tvm_hopper.raster_group": 2}
        ):
            for tx in T.thread_binding(2, thread="threadIdx.x"):
                for k in T.serial(2, annotations={"software_pipeline_stage": [0]}):
                    B[by, bx, tx] = A[by, bx, k]


@T.prim_func(private=True, s_tir=True)
def after(A: T.Buffer((4, 8, 2), "float32"), B: T.Buffer((4, 8, 2), "float32")):
    for by in T.thread_binding(4, thread="blockIdx.y", annotations={"tvm_hopper.early_launch": 1}):
        for _by_note in T.serial(1):
            for bx in T.thread_binding(
                8, thread="blockIdx.x", annotations={"tvm_hopper.raster_group": 2}
            ):
                for _bx_note in T.serial(1):
                    for tx in T.thread_binding(2, thread="threadIdx.x"):
                        for k in T.serial(2, annotations={"software_pipeline_stage": [0]}):
                            B[by, bx, tx] = A[by, bx, k]


@T.prim_func(private=True, s_tir=True)
def others(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4, 8), "float32")):
    for by in T.thread_binding(4, thread="blockIdx.y", annotations={"pragma_unroll": 1}):
        for bx in T.thread_binding(8, thread="blockIdx.x", annotations={"tvm_hopper.turns": 2}):
            B[by, bx] = A[by, bx]


def test_a_loop_for_the_notes_of_each_bound_loop():
    check(set_notes_apart(before), after)


def test_what_tvm_leaves_on_a_loop_of_its_own_stays():
    assert set_notes_apart(others).same_as(others)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("roles", [None, hs.Roles(1)], ids=["alone", "producer"])
@pytest.mark.parametrize("order", [{"persistent": 3}, {"group": 2}, {"early_launch": True}])
def test_a_pipeline_right_inside_of_thread_blocks(order, roles):
    x = te.placeholder((128, 256), name="X")
    y = te.compute((128, 256), lambda i, j: x[i, j] + 1.0, name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    i, j = sch.get_loops("Y")
    i0, step, i1 = sch.split(i, [None, 4, 8])
    j0, j1 = sch.split(j, [None, 128])
    sch.reorder(i0, j0, step, i1, j1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    tile = sch.cache_read("Y", 0, "shared.dyn")
    sch.compute_at(tile, step)
    _, thread, vector = sch.split(sch.fuse(i1, j1), [None, 128, 4])
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(vector)
    hs.async_copy(sch, tile)
    hs.raster(sch, j0, **order)
    hs.pipeline(sch, step, stages=3, roles=roles)
    with tvm.transform.PassContext(config={"tvm_hopper.strict": True}):
        assert tvm_hopper.verify(sch).require_clean().verdict == "clean"
    (kernel,) = tvm_hopper.explain(sch, "nvidia/nvidia-h200").kernels
    assert kernel.stages == 3
    assert kernel.persistent == order.get("persistent")
