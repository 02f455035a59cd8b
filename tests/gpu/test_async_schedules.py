"""Schedules for Ampere under one option, built for both chips, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.ir.transform import PassContext

from tvm_hopper.requests import keys
from tvm_hopper.testing.ampere_schedules import A100, columns, padded, vectors

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
TARGETS = pytest.mark.parametrize("target", ["nvidia/nvidia-h200", A100], ids=["sm_90a", "sm_80"])


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def run(mod, target, *inputs: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Build under the option, run ten times into poison, return what came out last."""
    with PassContext(config={keys.ASYNC_COPY: keys.AUTO}):
        kernel = tvm.compile(mod, target=target)["main"]
    given = [torch.from_numpy(x).cuda() for x in inputs]
    found = []
    for _ in range(10):
        out = torch.full(shape, 777.0, device="cuda", dtype=getattr(torch, dtype))
        kernel(*given, out)
        torch.cuda.synchronize()
        found.append(out.cpu().numpy())
    assert all(np.array_equal(x, found[0]) for x in found)
    return found[0]


@TARGETS
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("shape", [(4096, 1024), (61, 200)])
def test_vectors(target, stages, shape):
    a = np.random.default_rng(1).standard_normal(shape).astype("float16")
    got = run(vectors(*shape, stages=stages), target, a, shape=shape, dtype="float16")
    np.testing.assert_array_equal(got, a * np.float16(2))


@TARGETS
def test_columns(target):
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((16, 16)).astype("float32") for _ in "ab")
    got = run(columns, target, a, b, shape=(16, 16), dtype="float32")
    np.testing.assert_array_equal(got, a + b)


@TARGETS
def test_padded(target):
    a = np.random.default_rng(3).standard_normal((16, 14)).astype("float32")
    got = run(padded, target, a, shape=(16, 16), dtype="float32")
    want = np.zeros((16, 16), "float32")
    want[:, 1:15] = a
    np.testing.assert_array_equal(got, want)
