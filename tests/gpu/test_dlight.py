"""Functions that Relax legalises, scheduled by our rules, and TVM's own beside them, on a GPU."""

import subprocess
import sys

import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import dlight as dl

from tvm_hopper import dlight
from tvm_hopper.cuda_build import foreign
from tvm_hopper.testing.relax_forms import NORM, legalize

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
op = relax.op
H200 = "nvidia/nvidia-h200"


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def half(*shape):
    return shape, "float16"


def parts(x):
    split = op.split(x, [32, 40], 1)
    return [relax.TupleGetItem(split, i) for i in range(3)]


FORMS = {
    "rms_norm": (
        lambda x, w: op.nn.rms_norm(x, w, **NORM), [half("s", 4096), half(4096)],
        lambda x, w: [x / ((x * x).mean(-1, keepdim=True) + 1e-5).sqrt() * w],
    ),
    "softmax": (
        lambda x: op.nn.softmax(x, axis=-1), [half(64, 1000)], lambda x: [x.softmax(-1)],
    ),
    "parts": (
        parts, [half("s", 48, 128)], lambda x: [*x.split([32, 8, 8], 1)],
    ),
    "product": (
        lambda x, w: op.matmul(x, op.permute_dims(w)), [half(1, "s", 512), half(256, 512)],
        lambda x, w: [x @ w.mT],
    ),
}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 17, 300])
@pytest.mark.parametrize("name", FORMS)
def test_values(name, rows):
    build, tensors, formula = FORMS[name]
    mod = legalize(build, *tensors)
    (function,) = (gv.name_hint for gv in mod.functions)
    decisions = []
    with tvm.target.Target(H200):
        mod = dl.ApplyDefaultSchedule(*dlight.rules(decisions))(mod)
    assert decisions[-1].taken
    assert not decisions[-1].rule.startswith("dl.gpu")
    inputs = [
        torch.randn([rows if n == "s" else n for n in shape], device="cuda").half()
        for shape, _ in tensors
    ]
    wanted = formula(*(x.double() for x in inputs))
    outputs = [torch.full(x.shape, torch.nan, dtype=torch.half, device="cuda") for x in wanted]
    tvm.compile(mod, H200)[function](*map(tvm_ffi.from_dlpack, (*inputs, *outputs)))
    torch.cuda.synchronize()
    for got, want in zip(outputs, wanted, strict=True):
        error = (got.double() - want).abs().max() / want.abs().mean()
        assert float(error) < 0.03


ALONE = """
import numpy as np, tvm
from tvm import te
from tvm.s_tir import dlight as dl
assert tvm.cuda(0).exist
x = te.placeholder((1000,), name="X")
mod = tvm.IRModule({"main": te.create_prim_func([x, te.compute((1000,), lambda i: x[i] + 1.0)])})
with tvm.target.Target("nvidia/nvidia-h200"):
    mod = dl.ApplyDefaultSchedule(dl.gpu.Fallback())(mod)
a = tvm.runtime.tensor(np.arange(1000, dtype="float32"), tvm.cuda(0))
b = tvm.runtime.tensor(np.zeros(1000, dtype="float32"), tvm.cuda(0))
tvm.compile(mod, "nvidia/nvidia-h200")["main"](a, b)
assert (b.numpy() == np.arange(1000) + 1).all()
from tvm_hopper.cuda_build import foreign
print(len(foreign._compiled))
"""


def test_kernels_of_tvm_alone_run_without_a_toolkit(monkeypatch, tmp_path):
    """As on a machine with pip only: a process that never makes a kernel of ours."""
    if not all(map(foreign._folder_of, foreign.NEEDED)):
        pytest.skip("no CUDA headers at all")
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    code = f"import tvm_hopper\n{ALONE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["1"]
