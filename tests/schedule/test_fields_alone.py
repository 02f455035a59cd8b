"""Each field of a configuration, given alone: a choice of the rest, or one clear error."""

from dataclasses import fields

import pytest
from tvm import s_tir

from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule.cluster import AXIS
from tvm_hopper.schedule.dry_run import left_to_the_build
from tvm_hopper.testing import columns, memory_bound, workloads

PRODUCT = """
tile [(64, 16, 64), (256, 128, 64)]; stages [1, 8]; consumers [1, 3]; swizzle [0, 64];
registers [(24, 240)]; wgmma_pending [0, 1]; raster [8, "hilbert", hs.Raster(4, "hilbert")];
persistent [0, -1, 5]; accumulate ["float32"]; operands ["tf32"];
store ["tma", "threads", hs.TmaStore(2), hs.TmaStore(operand_slots=1)];
split_k [2, 16, "cluster", "workspace", "caller", "serial", "atomic", "stream"];
cluster [(1, 1), (2, 1), (1, 4), (2, 2), (8, 1), (2, 4)];
form ["tiles", "untransposed", "transposed", "dots", "direct"]; batch_invariant [True];
early_launch [True, False, "weights"]; schedule ["cooperative", "pingpong"]
"""
ROWS = """
threads [1, 96, 1024]; rows [1, 3]; vector [1, 8]; preload [True, False];
recompute [True, False]; reload [True, False]; blocks [1, 8]; hint [True, False];
chunks [1, 3]; cluster [1, 8, 16]; stage [True, False]; persistent [0, 2]; ahead [0, 2];
early_launch [True, False]; together [2]; unroll [1, 2]
"""
ELEMENTS = """
threads [32, 96, 1024]; chunks [1, 3]; vector [1, 8, 16]; hint [True, False];
early_launch [True, False]; blocks [1, 8]; together [2]
"""
COLUMNS = "threads [32, 1024]; rows [1, 3]; flight [1, 4]; blocks [1, 8]; vector [1, 8]; group [2]"


def product(config, *shape):
    hs.matmul(s_tir.Schedule(workloads.matmul(*shape)), "C", config)


def rows(config, *shape):
    hs.row_reduction(s_tir.Schedule(memory_bound.softmax(*shape)), config=config)


def elements(config, *shape):
    hs.pointwise(s_tir.Schedule(memory_bound.silu_mul(*shape)), config=config)


def column_sum(config, *shape):
    hs.column_reduction(s_tir.Schedule(columns.column_sum(*shape)), config=config)


SWEEPS = {  # of the shapes the first; the others take long
    product: (hs.MatmulConfig, PRODUCT, [(512, 512, 512), (8, 64, 256), ("m", 128, 128)]),
    rows: (hs.RowReductionConfig, ROWS, [(8, 256), (4, 40000)]),
    elements: (hs.PointwiseConfig, ELEMENTS, [(8, 256), (7, 100)]),
    column_sum: (hs.ColumnReductionConfig, COLUMNS, [(8, 256), (7, 100)]),
}
CASES = [
    pytest.param(helper, shape, marks=[pytest.mark.slow] if number else [])
    for helper, (_, _, shapes) in SWEEPS.items()
    for number, shape in enumerate(shapes)
]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("helper", "shape"), CASES)
def test_one_field_leaves_a_choice_or_one_error(helper, shape):
    kind, text, _ = SWEEPS[helper]
    values = dict(x.split(maxsplit=1) for x in text.split(";"))
    assert {x.name for x in fields(kind)} == set(values)
    accepted = set()
    with left_to_the_build():
        for field, value in ((x, y) for x, text in values.items() for y in eval(text)):
            try:
                helper(kind(**{field: value}), *shape)
            except ScheduleError as error:
                assert "found" in str(error)  # noqa: PT017
                assert "need" in str(error)  # noqa: PT017
            else:
                accepted.add(field)
    assert len(accepted) > len(values) // 2


@pytest.mark.parametrize("cluster", [(2, 1), (2, 2), (1, 4)])
def test_a_cluster_alone_chooses_a_tile(cluster):
    sch = s_tir.Schedule(workloads.matmul(512, 512, 4096))
    hs.matmul(sch, "C", hs.MatmulConfig(cluster=cluster))
    (kernel,) = ir.kernels(sch.mod["main"])
    assert int(ir.thread_axes(kernel)[AXIS].extent) == cluster[0] * cluster[1]


def test_a_cluster_that_no_tile_fits():
    with pytest.raises(ScheduleError, match=r"found no tile that fits cluster=\(8, 1\); need a cl"):
        product(hs.MatmulConfig(cluster=(8, 1)), 512, 16, 512)
