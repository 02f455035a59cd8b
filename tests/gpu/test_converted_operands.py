"""Products with operands that are converted on their way, on the GPU, over random shapes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.target import Target

from tvm_hopper import schedule as hs
from tvm_hopper.testing.converted import converted_weight

pytestmark = pytest.mark.gpu

H200 = "nvidia/nvidia-h200"
FORMS = [
    {},
    {"values": "ZS"},
    {"stored": "uint8", "values": "ZS", "dtype": "bfloat16"},
    {"dtype": "bfloat16", "values": ""},
    {"is_left": True},
]
CONFIGS = [
    {"tile": (64, 16, 64), "consumers": 1, "stages": 4},
    {"tile": (128, 64, 128), "consumers": 2, "stages": 3, "cluster": (1, 2)},
    {"tile": (128, 256, 64), "consumers": 2, "stages": 4},
    {"tile": (64, 64, 64), "schedule": "pingpong", "consumers": 2, "persistent": -1},
    {"tile": (128, 32, 64), "consumers": 2, "split_k": 2},
    {"tile": (128, 32, 64), "consumers": 2, "split_k": "stream", "persistent": 132},
]


def check(m, n, k, config=None, rows=(), **form):
    """Compare a kernel with float64: every byte occurs, and sums are exact."""
    torch = pytest.importorskip("torch")
    if not tvm.cuda(0).exist or tvm.cuda(0).compute_version != "9.0":
        pytest.skip("no GPU of compute capability 9.0")
    sch = s_tir.Schedule(converted_weight(m, n, k, out_dtype="float32", **form))
    with Target(H200):
        hs.matmul(sch, "C", None if config is None else hs.MatmulConfig(**config))
    run = tvm.compile(sch.mod, target=H200)["main"]
    values = form.get("values", "S")
    stored, dtype = form.get("stored", "int8"), getattr(torch, form.get("dtype", "float16"))
    low, high = (-128, 128) if stored == "int8" else (0, 256)
    made = {"device": "cuda", "dtype": getattr(torch, stored)}
    w = torch.randint(low, high, (n, k), **made)
    z, s = torch.randint(0, 3, (n,), **made), 2.0 ** torch.randint(-1, 2, (n,), device="cuda")
    wide = w.double() - (z.double()[:, None] if "Z" in values else 0)
    wide = wide.to(dtype).double() * (s[:, None].double() if "S" in values else 1)
    for count in rows or (m,):
        x = torch.randint(-2, 3, (count, k), device="cuda").to(dtype)
        shape = (n, count) if form.get("is_left") else (count, n)
        out = torch.full(shape, float("nan"), device="cuda")
        given = [x, w]
        given += [z] if "Z" in values else []
        given += [s.to(dtype)] if "S" in values else []
        run(*map(tvm_ffi.from_dlpack, (*given, out)))
        torch.cuda.synchronize()
        want = x.double() @ wide.to(dtype).double().T
        assert torch.equal(out.double(), want.T if form.get("is_left") else want), (count, n, k)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_random_shapes(form):
    rng = np.random.default_rng(35)
    for _ in range(20):
        m, n, k = rng.integers(1, 600), 64 * rng.integers(1, 33), 64 * rng.integers(1, 17)
        check(int(m), int(n), int(k), **form)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_configurations(config):
    for m in (1, 40, 129, 700):
        check(m, 1024, 1024, config)


@pytest.mark.parametrize("form", FORMS[:3], ids=str)
def test_any_number_of_rows(form):
    check("m", 4096, 1024, rows=(1, 7, 16, 17, 64, 100, 256, 513, 2048), **form)
