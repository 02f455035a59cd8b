"""Tensors that are read across their rows, in the simulator: values, the barrier."""

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir

from tests.schedule.test_transposition import transposed
from tests.sim_kernels.mutate import change
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import load, simulate, verify

PROGRAMS = {
    "one": transposed(64, 128),
    "with another": transposed(128, 64, more=True),
    "of a batch": transposed(64, 64, "float16", batch=(2,)),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_verified_clean(name):
    sch = s_tir.Schedule(PROGRAMS[name])
    hs.pointwise(sch, config=hs.PointwiseConfig(hint=True))
    verify(sch, against=PROGRAMS[name]).require_clean()


def test_without_its_barrier_the_simulator_objects():
    sch = s_tir.Schedule(PROGRAMS["one"])
    hs.pointwise(sch)
    program = load(sch)
    x = np.arange(64 * 128).reshape(128, 64).astype(ml_dtypes.bfloat16)
    result = simulate(program, {"X": x})
    assert not result.findings
    assert (result.outputs["Y"] == x.T).all()
    found = simulate(change(program, "tvm_storage_sync", 0), {"X": x}).findings
    assert any(f.rule.startswith("RACE") for f in found), found
