"""Products that random runs found: accepted, and not taken by the assembler."""

import pytest
import tvm
from tvm import s_tir

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.testing import workloads

CASES = {
    "two subtiles, one step of a sum in each block of a cluster": (
        *(200, 16, 64, "TN"),
        {"tile": (128, 32, 64), "consumers": 1, "stages": 3, "split_k": 6},
    ),
    "the same, by two kernels": (
        *(48, 96, 72, "NT"),
        {"tile": (256, 64, 16), "consumers": 1, "split_k": hs.SplitK(15, "workspace")},
    ),
    "instructions as wide as 256 columns, of three consumers in turn": (
        *(40, 296, 248, "NN"),
        {"tile": (64, 256, 16), "stages": 2, "consumers": 3, "schedule": "pingpong"},
    ),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", CASES)
def test_it_is_assembled(name):
    m, n, k, layout, config = CASES[name]
    sch = s_tir.Schedule(workloads.matmul(m, n, k, layout, "float16", "float32"))
    hs.matmul(sch, "C", hs.MatmulConfig(**config))
    assert tvm_hopper.cubin(tvm.compile(sch.mod, target="nvidia/nvidia-h200"))
