"""Weights of a few bits in words, with values of groups: formats as models have them."""

import pytest
from tvm import s_tir
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.simulation import verify
from tvm_hopper.testing.quantized import grouped_weight

SLOW = pytest.mark.slow
H200 = "nvidia/nvidia-h200"
TILE = {"tile": (64, 16, 64), "consumers": 1, "stages": 2}
GPTQ = {"is_kn": True, "zeros": "packed"}
AWQ = {"is_kn": True, "along": "n", "zeros": "packed", "order": "awq"}


@pytest.mark.parametrize(
    ("config", "program"),
    [
        ({}, {}),  # q4f16_1
        ({}, {"is_kn": True, "dtype": "bfloat16"}),  # q4f16_0
        ({}, {**AWQ, "group": 128}),
        pytest.param({}, {**GPTQ, "group": 64}, marks=SLOW),
        pytest.param({}, {**GPTQ, "group": 128, "bits": 8}, marks=SLOW),
        pytest.param({}, {"bits": 8}, marks=SLOW),  # q8f16_1
        pytest.param({}, {"bits": 8, "dtype": "bfloat16", "group": 128}, marks=SLOW),
        pytest.param({}, {"bits": 2, "group": 16}, marks=SLOW),
        pytest.param({}, {"stored": "uint8", "zeros": "values"}, marks=SLOW),
        pytest.param({}, {"along": "n", "group": 128}, marks=SLOW),
        pytest.param({}, {"group": 128, "dtype": "bfloat16", "zeros": "values"}, marks=SLOW),
        pytest.param({"tile": (64, 16, 128)}, {}, marks=SLOW),
        pytest.param({"tile": (128, 16, 64), "consumers": 2, "split_k": 2}, {}, marks=SLOW),
        pytest.param({"split_k": "stream", "persistent": 3}, {}, marks=SLOW),
        pytest.param({"cluster": (1, 2)}, {}, marks=SLOW),
    ],
)
def test_formats(config, program):
    mod = grouped_weight(20, 128, 128, **program)
    sch = s_tir.Schedule(mod)
    with Target(H200):
        hs.matmul(sch, "C", hs.MatmulConfig(**{**TILE, **config}))
    report = verify(sch.mod, against=mod, target=H200).require_clean()
    assert "values compared" in str(report)
