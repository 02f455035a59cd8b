"""Schedules for Ampere under one option, built for both chips, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.ir.transform import PassContext

from tvm_hopper.requests import keys
from tvm_hopper.testing import ampere_forms
from tvm_hopper.testing.ampere_forms import Form
from tvm_hopper.testing.ampere_schedules import A100, columns, padded, vectors
from tvm_hopper.testing.neighbors import stencil_of

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


def _stencil(a: np.ndarray) -> np.ndarray:
    return stencil_of(a[:, :-2])  # two columns make rows a multiple of 16 bytes


OUT_BY_BYTES = {4: Form((32, 64), chunk=1, vector=1, store=1), 8: Form((32, 64), vector=2, store=2)}
FORMS = {
    "copied out by 4 bytes": (ampere_forms.scaled(1024, 512, OUT_BY_BYTES[4]), lambda a: a * 2),
    "copied out by 8 bytes": (ampere_forms.scaled(1024, 512, OUT_BY_BYTES[8]), lambda a: a * 2),
    "stencil": (ampere_forms.five_point(1024, 512, Form((8, 128), 4, chunk=1, vector=1)), _stencil),
    "rows of float16": (ampere_forms.rows(200, "float16", 8), lambda a: a),
    "rows of float32": (ampere_forms.rows(200, "float32", 1), lambda a: a),
    "rows, doubled between": (ampere_forms.doubled_rows(200), lambda a: a * 2),
    "rows, stencil": (ampere_forms.stencil_rows(200), stencil_of),
    "rows, stencil, second tile": (ampere_forms.stencil_rows(200, True), stencil_of),
    "columns": (ampere_forms.columns(8, 128, 65), lambda a, b: a + b),
    "columns, padded": (
        ampere_forms.columns(8, 128, 65, pad=True),
        lambda a, b: np.pad(a + b, ((0, 0), (1, 1))),
    ),
}


@TARGETS
@pytest.mark.parametrize("name", FORMS)
def test_every_form(name, target):
    """Whole numbers: every sum is exact."""
    mod, computes = FORMS[name]
    rng = np.random.default_rng(4)
    *given, out = mod["main"].params
    inputs = [
        rng.integers(-64, 64, [int(n) for n in x.shape]).astype(str(x.ty.dtype)) for x in given
    ]
    want = computes(*(x.astype("float64") for x in inputs)).astype(str(out.ty.dtype))
    got = run(mod, target, *inputs, shape=want.shape, dtype=str(want.dtype))
    np.testing.assert_array_equal(got, want)


@TARGETS
@pytest.mark.parametrize("store", [None, 2], ids=["computed", "copied out"])
def test_in_place(store, target):
    """Each tile is read before any of it is stored, and no other tile reads what it stores."""
    mod = ampere_forms.scaled(1024, 512, Form((32, 64), vector=2, store=store))
    with PassContext(config={keys.ASYNC_COPY: keys.AUTO}):
        kernel = tvm.compile(mod, target=target)["main"]
    x = torch.randint(-64, 64, (1024, 512), device="cuda").float()
    want = x * 2
    kernel(x, x)
    torch.cuda.synchronize()
    assert torch.equal(x, want)
