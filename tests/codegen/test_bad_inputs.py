"""Bad inputs as a user makes them: one clear error at compile time each, or a right kernel.

The rows are those that break other matmul stacks: alignment, boxes, swizzles, strides, ranks, empty
and ragged shapes, types, shared memory, registers, targets. Wrong arguments of a call are in
test_host_checks.py.
"""

import pytest
from tvm import s_tir

from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.errors import LoweringError, ScheduleError
from tvm_hopper.testing import copies, workloads

H200 = "nvidia/nvidia-h200"
TILE = (64, 64, 64)


def lower(problem, tile=TILE, target=H200, **config):
    """Schedule and lower; nothing is compiled, let alone run."""
    config = {"stages": 2, "consumers": 1, **config}
    sch = s_tir.Schedule(workloads.matmul(**{"m": 64, "n": 64, "k": 64, **problem}))
    hs.matmul(sch, "C", hs.MatmulConfig(tile, **config))
    return pipeline.lower(sch.mod, target)


def by_annotations(problem, **notes):
    """Ask by bare annotations, so that the passes are the first to judge."""
    sch = s_tir.Schedule(workloads.matmul(**{"m": 64, "n": 64, "k": 64, **problem}))
    i, j, k = sch.get_loops("C")
    (i0, i1), (j0, j1), (k0, k1) = (sch.split(x, [None, 64]) for x in (i, j, k))
    sch.reorder(i0, j0, k0, i1, j1, k1)
    sch.bind(i0, "blockIdx.y")
    sch.bind(j0, "blockIdx.x")
    sch.reverse_compute_at(sch.cache_write("C", 0, "local"), j0)
    for index in (0, 1):
        copy = sch.cache_read("C", index, "shared.dyn")
        sch.compute_at(copy, k0)
        sch.annotate(copy, "tvm_hopper.async_copy", "tma")
        for name, value in notes.items():
            sch.annotate(copy, f"tvm_hopper.{name}", value)
    sch.decompose_reduction("C", k0)
    sch.annotate(sch.blockize(i1), "tvm_hopper.wgmma", 1)
    sch.annotate(k0, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
    sch.annotate(k0, "software_pipeline_async_stages", [0])
    return pipeline.lower(sch.mod, H200)


def lower_store(mechanism, target):
    """Lower a kernel whose tiles leave by a mechanism, and come by threads."""
    route = copies.Route(load=None, store=mechanism, stages=None)
    return pipeline.lower(copies.schedule(copies.copy(64, 256), route).mod, target)


def test_bare_annotations_lower():
    assert "mbarrier" in by_annotations({}).script()


ROWS = {
    "row stride of A": (
        lambda: lower({"k": 100}),
        ScheduleError,
        r"tensor A: found K = 100 float16 elements, rows 200 bytes apart; need a multiple of 16 "
        r"bytes; pad K to 104",
    ),
    "row stride of B": (
        lambda: lower({"n": 1001, "layout": "NN"}),
        ScheduleError,
        r"tensor B: found N = 1001 float16 elements, rows 2002 bytes apart; .* pad N to 1008",
    ),
    "row stride of A transposed": (
        lambda: lower({"m": 100, "layout": "TN"}),
        ScheduleError,
        r"tensor A: found M = 100 .* pad M to 104",
    ),
    "symbolic row stride": (
        lambda: lower({"m": "m", "layout": "TN"}),
        ScheduleError,
        r"tensor A: .*m",
    ),
    "empty shape": (lambda: lower({"m": 0}), ScheduleError, r"found M=0; need a shape without"),
    "operands in float32": (
        lambda: lower({"dtype": "float32", "cast": "none"}),
        ScheduleError,
        r"float32",
    ),
    "operands in int16": (
        lambda: lower({"dtype": "int16", "acc_dtype": "int32", "out_dtype": "int32"}),
        ScheduleError,
        r"found int16; need",
    ),
    "accumulator in float16": (
        lambda: lower({"acc_dtype": "float16", "out_dtype": "float16", "cast": "none"}),
        ScheduleError,
        r"a sum in float16; need a sum in float32; give accumulate=\"float32\"",
    ),
    "tile rows": (lambda: lower({}, (32, 64, 64)), ScheduleError, r"tile_m 32; need a multiple of"),
    "tile columns": (lambda: lower({}, (64, 60, 64)), ScheduleError, r"tile_n 60; need a multiple"),
    "tile depth": (lambda: lower({}, (64, 64, 24)), ScheduleError, r"tile_k 24; need a multiple"),
    "shared memory": (
        lambda: lower({}, (128, 256, 64), stages=5, consumers=2),
        ScheduleError,
        r"found 5 stages x \(A 16384 \+ B 32768 \+ barriers 16\) \+ alignment 8 = 245848 B of "
        r"shared memory; need at most 232448 B, which 4 stages of this tile take",
    ),
    "registers": (
        lambda: lower({}, (128, 256, 64), consumers=1),
        ScheduleError,
        r"found 256 accumulators a thread .* need at most 229 of 256 registers",
    ),
    "registers of roles": (
        lambda: hs.Roles(2, (40, 240)),
        ScheduleError,
        r"40 \+ 2 x 240 = 520 registers; need at most 3 x 168 = 504",
    ),
    "swizzle wider than the rows": (
        lambda: lower({}, (64, 64, 32), swizzle=128),
        ScheduleError,
        r"found swizzle=128 with rows of 32 elements in A's tile; need multiples of 64 elements, "
        r"or a narrower swizzle",
    ),
    "swizzle wider than a consumer's columns": (
        lambda: lower({"layout": "NN"}, swizzle=128, consumers=2),
        ScheduleError,
        r"found swizzle=128 with rows of 32 elements in B's tile; need multiples of 64 elements",
    ),
    "more pending groups than slots": (
        lambda: lower({}, stages=1, wgmma_pending=1),
        ScheduleError,
        r"found wgmma_pending=1 with 1 stages; need 2 stages or more: a group in flight keeps its",
    ),
    "target without the a": (
        lambda: lower({}, target={"kind": "cuda", "arch": "sm_90"}),
        LoweringError,
        r"with target cuda sm_90; need a cuda target with arch sm_90a or sm_80; build with",
    ),
    "older target": (
        lambda: lower({}, target={"kind": "cuda", "arch": "sm_80"}),
        LoweringError,
        r"found tvm_hopper.async_copy = 'tma' on sm_80; need a mechanism that it has: 'cp_async'; "
        r'it has no wgmma either: build with target="nvidia/nvidia-h200"',
    ),
    "store on an older target": (
        lambda: lower_store("tma", "nvidia/nvidia-a100"),
        LoweringError,
        r"need a mechanism that it has: none that copies this way; let threads copy, or build",
    ),
    "another kind of target": (
        lambda: lower({}, target="llvm"),
        LoweringError,
        r"with target llvm; need a cuda target with arch sm_90a",
    ),
    "misspelt key": (
        lambda: by_annotations({}, swizle=128),
        LoweringError,
        r"unknown key tvm_hopper.swizle; need a key of tvm_hopper.keys; did you mean "
        r"tvm_hopper.swizzle\?",
    ),
    "illegal value": (
        lambda: by_annotations({}, swizzle=48),
        LoweringError,
        r"tvm_hopper.swizzle = 48; need one of 0, 32, 64, 128",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_one_clear_error(row):
    make, error, match = ROWS[row]
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize(
    ("problem", "tile", "consumers"),
    [
        ({"n": 320}, (64, 320, 64), 1),  # boxes have at most 256 rows
        ({"k": 128}, (64, 64, 128), 1),  # rows of 256 B, two swizzle spans
        ({"m": 1, "n": 1, "k": 8}, TILE, 1),  # a tile larger than the tensors
        ({"m": 65, "n": 66, "k": 72}, TILE, 1),  # no dimension divides
        ({"m": "m"}, TILE, 1),  # known at run time only
    ],
)
def test_what_others_refuse_is_split_or_filled(problem, tile, consumers):
    assert "mbarrier" in lower(problem, tile, consumers=consumers).script()
