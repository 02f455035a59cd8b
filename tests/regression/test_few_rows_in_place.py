"""An output of fewer rows than its tile was staged over a residual of those rows alone, whole."""

import pytest
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.simulation import verify
from tvm_hopper.testing import workloads


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("rows", [17, 64])
def test_rows_that_are_not_there_are_stored_nowhere(rows):
    types = {"dtype": "bfloat16", "out_dtype": "bfloat16"}
    mod = workloads.matmul(rows, 128, 512, **types, epilogue=("residual",))
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(192, 64, 64)))
    verify(sch, runs=(("on_wait", 0),)).require_clean()
