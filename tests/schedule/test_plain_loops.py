"""Copies and pipelines around plain loops: what they annotate, refuse, and leave for the passes."""

import numpy as np
import pytest
from tvm import s_tir

import tvm_hopper
from tests.transforms.scripts import run
from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.testing import pointwise, workloads
from tvm_hopper.testing.pointwise import Tiling
from tvm_hopper.testing.serial import run_serially
from tvm_hopper.transforms import LowerAsyncCopies, SwizzleSharedTiles

H200 = "nvidia/nvidia-h200"
PROGRAMS = {
    "whole": ("exp_add", (256, 256), {}, Tiling()),
    "half": ("exp_add", (256, 256), {"dtype": "float16"}, Tiling(vector=8)),
    "swizzled": ("exp_add", (256, 256), {"dtype": "float16"}, Tiling(vector=8, swizzle=128)),
    "ragged": ("exp_add", (100, 200), {}, Tiling(steps=2)),
    "narrower than a tile": ("exp_add", (24, 100), {}, Tiling(steps=1)),
    "one dimension": ("scale", (10004,), {}, Tiling(tile=(2048,))),
    "row bias": ("add_row_bias", (100, 200), {}, Tiling(steps=2)),
    "one row a step": ("exp_add", (16, 1024), {}, Tiling(tile=(1, 1024))),
}


def annotations(sch, loop):
    found = {str(key): value for key, value in sch.get(loop).annotations.items()}
    return {k: list(v) if hasattr(v, "__len__") else int(v) for k, v in found.items()}


def unpiped(roles=None, **changes):
    """Return a schedule that lacks the pipeline, and its loop."""
    sch = pointwise.schedule(pointwise.exp_add(256, 256), Tiling(stages=None, **changes))
    return sch, sch.get_loops("C")[2]


STAGES = {
    "software_pipeline_stage": [0, 0, 3],
    "software_pipeline_order": [0, 1, 2],
    "software_pipeline_async_stages": [0],
}


def test_without_roles_no_consumers_are_annotated():
    sch, loop = unpiped()
    hs.pipeline(sch, loop, stages=4)
    assert annotations(sch, loop) == STAGES


@pytest.mark.parametrize("consumers", [1, 2, 7])
def test_consumers_are_warp_groups_of_the_loops_inside(consumers):
    # 128 * 7 does not divide the tile, and a split may be ragged
    sch, loop = unpiped(threads=128 * consumers)
    hs.pipeline(sch, loop, stages=4, roles=hs.Roles(consumers))
    assert annotations(sch, loop) == {**STAGES, "tvm_hopper.consumers": consumers}


def test_several_statements_behind_the_copies_share_the_last_stage():
    sch, loop = unpiped()
    block = sch.cache_write("C", 0, "local")
    sch.reverse_compute_at(block, loop)
    hs.pipeline(sch, loop, stages=3)
    assert annotations(sch, loop)["software_pipeline_stage"] == [0, 0, 2, 2]
    assert annotations(sch, loop)["software_pipeline_order"] == [0, 1, 2, 3]


def refused(match, sch, loop, **options):
    before = sch.mod
    with pytest.raises(ScheduleError, match=match):
        hs.pipeline(sch, loop, stages=4, **options)
    assert sch.mod.same_as(before)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"roles": hs.Roles(3)},
            r"found consumers=3 with threadIdx.x 256; need loops bound to 384 threads, 128 for",
        ),
        (
            {"roles": hs.Roles(2, (40, 232))},
            r"found registers=\(40, 232\) without a product; need it next to a product alone",
        ),
        ({"wgmma_pending": 0}, r"found wgmma_pending=0 without a product; need it next to"),
    ],
)
def test_roles_that_plain_loops_lack(options, match):
    refused(match, *unpiped(), **options)


def test_roles_without_threads():
    sch = s_tir.Schedule(pointwise.exp_add(256, 256))
    loop = sch.get_loops("C")[0]
    copy = sch.cache_read("C", 0, "shared.dyn")
    sch.compute_at(copy, loop)
    hs.async_copy(sch, copy)
    refused("found consumers=1 with no loop bound to threadIdx", sch, loop, roles=hs.Roles(1))


def test_a_product_takes_three_consumers_at_most():
    sch = s_tir.Schedule(workloads.matmul(256, 256, 256))
    i, j, k = sch.get_loops("C")
    k0, k1 = sch.split(k, [None, 64])
    sch.reorder(k0, i, j, k1)
    for index in (0, 1):
        copy = sch.cache_read("C", index, "shared.dyn")
        sch.compute_at(copy, k0)
        hs.async_copy(sch, copy)
    match = "found consumers=4; need 1, 2 or 3 warp groups of a product"
    refused(match, sch, k0, roles=hs.Roles(4))


def test_a_copy_inside_of_an_inner_loop():
    sch = pointwise.schedule(pointwise.exp_add(256, 256), Tiling(stages=None))
    match = (
        r"found an asynchronous copy in one loop with block .*; need each copy in a loop nest of"
    )
    refused(match, sch, sch.get_loops("C")[1])


def test_a_loop_whose_copies_are_those_of_the_pipeline_in_it():
    sch, loop = unpiped()
    hs.pipeline(sch, loop, stages=4)
    match = "found copies of a loop inside alone; need a copy at this loop, too, next to that of"
    refused(match, sch, sch.get_loops("C")[1])


def test_copies_that_nothing_reads_in_the_loop():
    sch = s_tir.Schedule(pointwise.scale(1024))
    copy = sch.cache_read("C", 0, "shared.dyn")
    hs.async_copy(sch, copy)
    loop, _ = sch.split(sch.get_loops(copy)[0], [4, None])
    refused("found 1 copies alone; need copies, and after them what reads their tiles", sch, loop)


def test_a_statement_in_front_of_a_copy():
    sch, loop = unpiped()
    first = sch.get_child_blocks(loop)[0]
    sch.unannotate(first, "tvm_hopper.async_copy")  # a copy by threads
    match = "found block A_shared.dyn before a copy; need the copies first, and then what read"
    refused(match, sch, loop)


# -- what arrives at the passes


def schedule_of(name):
    kind, shape, options, tiling = PROGRAMS[name]
    return pointwise.schedule(getattr(pointwise, kind)(*shape, **options), tiling)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_becomes_copies_and_vectors(name):
    func = tvm_hopper.lower_to_hook(schedule_of(name).mod, H200)["main"]
    got = run(func, SwizzleSharedTiles(), LowerAsyncCopies())
    loads = ir.find_blocks(got.body, "tvm_hopper.async_op")
    assert len(loads) == (2 if PROGRAMS[name][0] == "exp_add" else 1)
    for loop in ir.find_all(got.body, ir.For, lambda x: x.kind == ir.ForKind.VECTORIZED):
        for load in ir.find_all(loop, ir.TensorLoad, lambda x: ir.is_shared(x.source)):
            *outer, last = load.indices
            assert not ir.depends_on(outer, [loop.loop_var])
            rest = ir.simplify(last - loop.loop_var)
            assert not ir.depends_on(rest, [loop.loop_var]), last


@pytest.mark.parametrize("name", PROGRAMS)
def test_schedules_compute_what_they_should(name):
    kind, shape, options, _ = PROGRAMS[name]
    mod = getattr(pointwise, kind)(*shape, **options)
    inputs = workloads.make_inputs(mod)
    got = run_serially(schedule_of(name).mod, inputs)
    want = pointwise.reference(kind, inputs)
    tolerance = 2e-3 if options else 1e-5
    np.testing.assert_allclose(got, want, rtol=tolerance)
