"""Outputs whose rows begin off sectors leave as boxes, where stores are much of a kernel's time."""

import pytest
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.schedule.products.staging import EpilogueTypes, leaves_off_sectors
from tvm_hopper.testing import workloads


def stages_output(n, k, config=None, **form):
    sch = s_tir.Schedule(workloads.matmul(7528, n, k, "NT", "float16", **form))
    hs.matmul(sch, "C", config)
    return sch.mod.script().count('"tvm_hopper.async_copy": "tma"') == 3  # beside A and B


@pytest.mark.parametrize(
    ("n", "k", "out_dtype"), [(7256, 96, "float16"), (7252, 96, "float32"), (1560, 512, "float16")]
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
    ("tile", "k", "leaves"),
    [
        ((128, 256, 64), 1456, True),
        ((192, 160, 64), 96, False),  # a row of it is no whole number of boxes
        ((256, 192, 64), 512, False),  # slots of the ring would have to go
        ((256, 192, 64), 96, True),
    ],
)
def test_tiles_that_leave_as_boxes(tile, k, leaves):
    types, config = EpilogueTypes(("float16",)), hs.MatmulConfig(tile)
    assert leaves_off_sectors(config, (7528, 7256), types, k) == leaves
