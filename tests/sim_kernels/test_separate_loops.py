"""Roles with loop nests of their own over tiles and steps, for a kernel that is no product.

The lengths of rows: a producer warp runs through the steps of all tiles of its thread block, in
front of the consumers, and loads the next tile while they finish one and store it.
"""

import pytest
import tvm
from tvm import s_tir, te

import tvm_hopper
from tests.sim_kernels.mutate import change
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load, simulate, verify

THREADS, STEP = 128, 32
TARGET = "nvidia/nvidia-h200"


def lengths(rows, depth):
    """Build Y[i] = sqrt(sum over k of X[i, k]^2)."""
    x = te.placeholder((rows, depth), "float32", name="X")
    k = te.reduce_axis((0, depth), "k")
    s = te.compute((rows,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="S")
    y = te.compute((rows,), lambda i: te.sqrt(s[i]), name="Y")
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


def scheduled(rows=640, depth=160, stages=3, consumers=1, blocks=2):
    """Schedule it: tiles of rows, steps of a row, a ring of boxes, a producer."""
    mod = lengths(rows, depth)
    sch = s_tir.Schedule(mod)
    block, store = sch.get_sblock("S"), sch.get_sblock("Y")
    sch.set_scope(block, 0, "local")
    tile, row = sch.split(sch.get_loops(store)[0], [None, THREADS * consumers])
    sch.compute_at(block, tile)
    _, own, k = sch.get_loops(block)
    step, inner = sch.split(k, [None, STEP])
    sch.reorder(step, own, inner)
    sch.bind(sch.add_unit_loop(tile), "blockIdx.y")
    sch.bind(tile, "blockIdx.x")
    sch.bind(row, "threadIdx.x")
    sch.bind(own, "threadIdx.x")
    sch.decompose_reduction(block, step)
    copy = sch.cache_read(sch.get_sblock("S_update"), 1, "shared.dyn")
    sch.compute_at(copy, step)
    hs.async_copy(sch, copy, "tma")
    hs.pipeline(sch, step, stages=stages, roles=hs.Roles(consumers))
    if blocks:
        hs.raster(sch, tile, persistent=blocks)
    return mod, sch


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("rows", "depth", "stages", "consumers", "blocks"),
    [
        (640, 160, 3, 1, 2),  # five tiles of five steps for two thread blocks
        (640, 160, 2, 1, 0),
        (768, 96, 4, 2, 1),  # a ring longer than a tile's steps
    ],
)
def test_values(rows, depth, stages, consumers, blocks):
    mod, sch = scheduled(rows, depth, stages, consumers, blocks)
    verify(sch, against=mod).require_clean()


def test_explain_tells_the_roles():
    told = str(tvm_hopper.explain(scheduled()[1], TARGET))
    assert "producer" in told
    assert "persistent" in told or "thread blocks" in told


@pytest.mark.parametrize("which", [0, 1])  # the producer's, for slots; the consumers', for loads
def test_without_a_wait_the_simulator_objects(which):
    assert simulate(change(load(scheduled()[1]), "mbarrier_wait", which), {}).findings
