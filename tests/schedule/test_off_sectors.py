"""Outputs whose rows begin off sectors leave as boxes, where a kernel mostly stores."""

import pytest
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads


def stages_output(n, k, config=None, **form):
    sch = s_tir.Schedule(workloads.matmul(512, n, k, "NT", "float16", **form))
    hs.matmul(sch, "C", config)
    return sch.mod.script().count('"tvm_hopper.async_copy": "tma"') == 3  # beside A and B


@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
def test_shallow_sums(out_dtype):
    n = 1048 if out_dtype == "float16" else 1044
    assert stages_output(n, 64, out_dtype=out_dtype)


@pytest.mark.parametrize(
    ("n", "k", "config"),
    [
        (1056, 64, None),  # rows at sectors
        (1046, 64, None),  # no rows for TMA
        (1048, 256, None),  # deeper
        (1048, 64, hs.MatmulConfig((128, 128, 64))),
        (1048, 64, hs.MatmulConfig(operand_slots=0)),
        (1048, 64, hs.MatmulConfig(transposed=True)),
    ],
)
def test_others_leave_as_before(n, k, config):
    assert not stages_output(n, k, config, out_dtype="float16")
