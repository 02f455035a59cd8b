"""Outputs leave as boxes where stores are much of a kernel's time: rows off sectors, short sums."""

import pytest
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.schedule.products.staging import EpilogueTypes, leaves_as_boxes
from tvm_hopper.testing import workloads


def stages_output(n, k, config=None, **form):
    sch = s_tir.Schedule(workloads.matmul(7528, n, k, "NT", "float16", **form))
    hs.matmul(sch, "C", config)
    return sch.mod.script().count('"tvm_hopper.async_copy": "tma"') == 3  # beside A and B


@pytest.mark.parametrize(
    ("n", "k", "out_dtype"),
    [
        (7256, 96, "float16"),
        (7252, 96, "float32"),
        (2040, 512, "float16"),
        (7264, 64, "float16"),  # rows at sectors, of which threads have no time to store any
    ],
)
def test_sums_of_few_terms(n, k, out_dtype):
    assert stages_output(n, k, out_dtype=out_dtype)


@pytest.mark.parametrize(
    ("n", "k", "config"),
    [
        (7264, 96, None),  # rows at sectors
        (7254, 96, None),  # no rows for TMA
        (7256, 96, hs.MatmulConfig((128, 192, 64))),
        (7256, 96, hs.MatmulConfig(store="threads")),
        (7256, 96, hs.MatmulConfig(form="transposed")),
    ],
)
def test_others_leave_as_before(n, k, config):
    assert not stages_output(n, k, config, out_dtype="float16")


@pytest.mark.parametrize(
    ("tile", "types", "n", "k", "leaves"),
    [
        ((128, 256, 64), ("float16", "float16"), 7256, 1456, True),
        ((128, 256, 64), ("float8_e4m3fn", "bfloat16"), 7256, 2912, True),  # as short in bytes
        ((128, 256, 64), ("float8_e4m3fn", "bfloat16"), 7256, 3104, False),
        ((192, 160, 64), ("float16", "float16"), 7256, 96, False),  # a row is no number of boxes
        ((256, 192, 64), ("float16", "float16"), 7256, 512, False),  # slots would have to go
        ((256, 192, 64), ("float16", "float16"), 7256, 96, True),
        ((128, 128, 128), ("int8", "int32"), 7168, 256, True),
        ((128, 128, 128), ("int8", "int32"), 7168, 272, False),  # threads have time
        ((256, 192, 128), ("int8", "int32"), 7168, 32, False),
    ],
)
def test_tiles_that_leave_as_boxes(tile, types, n, k, leaves):
    dtype, out = types
    config = hs.MatmulConfig(tile)
    assert leaves_as_boxes(config, (7528, n), dtype, EpilogueTypes((out,)), k) == leaves
    alone = hs.MatmulConfig(tile, persistent=0)
    off_sectors = n % 16 != 0
    found = leaves_as_boxes(alone, (7528, n), dtype, EpilogueTypes((out,)), k)
    assert found == (leaves and off_sectors)
