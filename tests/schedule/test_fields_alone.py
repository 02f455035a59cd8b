"""Each field of a configuration, given alone: a choice of the rest, or one clear error."""

from dataclasses import fields

import pytest
from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule.cluster import AXIS
from tvm_hopper.schedule.dry_run import left_to_the_build
from tvm_hopper.testing import columns, memory_bound, workloads

BOTH = (True, False)
SWEEPS = {
    hs.MatmulConfig: {
        "tile": [(64, 16, 64), (256, 128, 64)],
        "stages": [1, 8],
        "consumers": [1, 3],
        "swizzle": [0, 64],
        "registers": [(24, 240)],
        "wgmma_pending": [0, 1],
        "raster_group": [8],
        "raster_curve": ["hilbert"],
        "persistent": [0, -1, 5],
        "accumulate": ["float32"],
        "last_stage": [1],
        "store": ["tma"],
        "store_parts": [2],
        "split_k": [2, 16],
        "split_mode": ["cluster", "workspace", "caller", "serial", "atomic", "stream"],
        "cluster": [(1, 1), (2, 1), (1, 4), (2, 2), (8, 1), (2, 4)],
        "operand_slots": [0, 1],
        "transposed": BOTH,
        "batch_invariant": [True],
        "dots": [True],
        "direct": [True],
        "early_weights": [True],
        "early_launch": BOTH,
        "schedule": ["cooperative", "pingpong"],
    },
    hs.RowReductionConfig: {
        "threads": [1, 96, 1024],
        "rows": [1, 3],
        "vector": [1, 8],
        "preload": BOTH,
        "recompute": BOTH,
        "reload": BOTH,
        "blocks": [1, 8],
        "hint": BOTH,
        "chunks": [1, 3],
        "cluster": [1, 8, 16],
        "stage": BOTH,
        "persistent": [0, 2],
        "ahead": [0, 2],
        "early_launch": BOTH,
        "together": [2],
    },
    hs.PointwiseConfig: {
        "threads": [32, 96, 1024],
        "chunks": [1, 3],
        "vector": [1, 8, 16],
        "hint": BOTH,
        "early_launch": BOTH,
        "blocks": [1, 8],
        "together": [2],
    },
    hs.ColumnReductionConfig: {
        "threads": [32, 1024],
        "rows": [1, 3],
        "flight": [1, 4],
        "blocks": [1, 8],
        "vector": [1, 8],
        "group": [1, 2],
    },
}


def try_alone(kind, config, shape):
    if kind is hs.MatmulConfig:
        hs.matmul(s_tir.Schedule(workloads.matmul(*shape)), "C", config)
    elif kind is hs.PointwiseConfig:
        hs.pointwise(s_tir.Schedule(memory_bound.silu_mul(*shape)), config=config)
    elif kind is hs.RowReductionConfig:
        hs.row_reduction(s_tir.Schedule(memory_bound.softmax(*shape)), config=config)
    else:
        hs.column_reduction(s_tir.Schedule(columns.column_sum(*shape)), config=config)


SHAPES = {
    hs.MatmulConfig: [(512, 512, 512), (8, 64, 256), ("m", 128, 128)],
    hs.RowReductionConfig: [(8, 256), (4, 40000)],
    hs.PointwiseConfig: [(8, 256), (7, 100)],
    hs.ColumnReductionConfig: [(8, 256), (7, 100)],
}
CASES = [
    pytest.param(kind, shape, marks=[pytest.mark.slow] if number else [])
    for kind, shapes in SHAPES.items()
    for number, shape in enumerate(shapes)
]


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_one_field_leaves_a_choice_or_one_error(kind, shape):
    assert {x.name for x in fields(kind)} == set(SWEEPS[kind])
    accepted = set()
    with left_to_the_build():
        for field, values in SWEEPS[kind].items():
            for value in values:
                try:
                    try_alone(kind, kind(**{field: value}), shape)
                except ScheduleError as error:
                    assert "found" in str(error)  # noqa: PT017
                    assert "need" in str(error)  # noqa: PT017
                else:
                    accepted.add(field)
    assert len(accepted) > len(SWEEPS[kind]) // 2


@pytest.mark.parametrize("cluster", [(2, 1), (2, 2), (1, 4)])
def test_a_cluster_alone_chooses_a_tile(cluster):
    sch = s_tir.Schedule(workloads.matmul(512, 512, 4096))
    hs.matmul(sch, "C", hs.MatmulConfig(cluster=cluster))
    (kernel,) = ir.kernels(sch.mod["main"])
    assert int(ir.thread_axes(kernel)[AXIS].extent) == cluster[0] * cluster[1]


def test_a_cluster_that_no_tile_fits():
    sch = s_tir.Schedule(workloads.matmul(512, 16, 512))
    with pytest.raises(ScheduleError, match=r"found no tile that fits cluster=\(8, 1\); need a cl"):
        hs.matmul(sch, "C", hs.MatmulConfig(cluster=(8, 1)))
