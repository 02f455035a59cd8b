"""Products with weights of a few bits in words, on the GPU: formats, configurations, rows."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.target import Target

from tests.quantized_values import FORMATS, draw
from tvm_hopper import schedule as hs
from tvm_hopper.testing.quantized import grouped_weight

pytestmark = pytest.mark.gpu

H200 = "nvidia/nvidia-h200"
CONFIGS = [
    {"tile": (64, 16, 64), "consumers": 1, "stages": 4},
    {"tile": (128, 64, 128), "consumers": 2, "stages": 3, "cluster": (1, 2)},
    {"tile": (128, 256, 64), "consumers": 2, "stages": 4},
    {"tile": (256, 8, 128), "consumers": 2, "stages": 3, "split_k": 4},
    {"tile": (128, 32, 64), "consumers": 2, "split_k": hs.SplitK(2, "serial")},
    {"tile": (128, 32, 64), "consumers": 2, "split_k": "stream", "persistent": 132},
    {"tile": (64, 64, 64), "schedule": "pingpong", "consumers": 2, "persistent": -1},
]


def check(m, n, k, config=None, rows=(), **form):
    """Compare with float64; the output is poisoned before."""
    device = tvm.cuda(0)
    if not device.exist or device.compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    sch = s_tir.Schedule(grouped_weight(m, n, k, **form))
    with Target(H200):
        hs.matmul(sch, "C", None if config is None else hs.MatmulConfig(**config))
    run = tvm.compile(sch.mod, target=H200)["main"]
    for count in rows or (m,):
        given, want, bound = draw(count, n, k, np.random.default_rng(n + k + count), **form)
        out = tvm.runtime.tensor(np.full(want.shape, np.nan).astype(given["X"].dtype), device)
        run(*(tvm.runtime.tensor(x, device) for x in given.values()), out)
        error = np.abs(out.numpy().astype("float64") - want)
        assert (error <= bound).all(), (count, n, k, form)


@pytest.mark.parametrize("name", FORMATS)
def test_random_shapes(name):
    rng = np.random.default_rng(40)
    for _ in range(20):
        step = 320 if name == "q3f16" else 128  # rows of words are multiples of 16 bytes
        m, n, k = rng.integers(1, 600), 128 * rng.integers(1, 17), step * rng.integers(1, 17)
        check(int(m), int(n), int(k), **FORMATS[name])


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_configurations(config):
    for m in (1, 40, 129, 700):
        check(m, 1024, 1024, config)


@pytest.mark.parametrize("name", ["q4f16_1", "q8bf16", "fp8 of blocks"])
def test_few_rows(name):
    for m, n, k in ((1, 4096, 4096), (3, 72, 1152), (8, 1000, 5120), (16, 256, 8960)):
        check(m, n, k, {"form": "direct"}, **FORMATS[name])
        check(m, n, k, **FORMATS[name])


@pytest.mark.parametrize("name", ["q4f16_1", "awq", "fp8 of blocks"])
def test_any_number_of_rows(name):
    check("m", 4096, 1024, rows=(1, 7, 16, 17, 64, 100, 256, 513, 2048), **FORMATS[name])
