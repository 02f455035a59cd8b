"""Compiled kernels on a GPU: right, on any stream, in a graph, and without the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.matmul_case import Case, build, check, inputs, poisoned

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")

ROOT = Path(__file__).resolve().parents[2]
CASE = Case(456, 328, 392, "NT", "float16", "float32")


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.fixture(scope="module")
def executable():
    return build(CASE)


@pytest.fixture
def tensors():
    a, b = inputs(CASE, CASE.m, "normal", seed=1)
    return a, b, poisoned((CASE.m, CASE.n), CASE.out_dtype)[1]


@pytest.mark.parametrize("layout", ["NT", "NN", "TN", "TT"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_layout_is_right(layout, dtype):
    case = Case(456, 328, 392, layout, dtype, "float32")
    check(case, build(case)["main"])


def test_one_build_serves_every_m():
    case = Case(None, 328, 392, "NT", sizes=(0, 1, 127, 128, 129, 1000))
    check(case, build(case)["main"])


def test_a_torch_stream_gives_the_eager_result(executable, tensors):
    a, b, eager = tensors
    executable["main"](a, b, eager)
    out = torch.full_like(eager, float("nan"))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), tvm_ffi.use_torch_stream():
        executable["main"](a, b, out)
    stream.synchronize()
    assert torch.equal(out, eager)


def test_a_replayed_graph_gives_the_eager_result_for_new_inputs(executable, tensors):
    a, b, out = tensors
    executable["main"](a, b, out)  # loads the kernel: a capture must not
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        executable["main"](a, b, out)
    fresh_a, fresh_b = inputs(CASE, CASE.m, "normal", seed=2)
    a.copy_(fresh_a)
    b.copy_(fresh_b)
    out.fill_(float("nan"))
    graph.replay()
    eager = torch.empty_like(out)
    executable["main"](a, b, eager)
    torch.cuda.synchronize()
    assert torch.equal(out, eager)
    assert not torch.isnan(out).any()


def test_a_library_runs_where_the_package_is_not_installed(executable, tmp_path):
    path = tmp_path / "matmul.so"
    executable.export_library(str(path))
    script = f"""
import importlib.util, torch, tvm
assert importlib.util.find_spec("tvm_hopper") is None
run = tvm.runtime.load_module({str(path)!r})["main"]
a = torch.randint(-2, 3, ({CASE.m}, {CASE.k}), device="cuda").half()
b = torch.randint(-2, 3, ({CASE.n}, {CASE.k}), device="cuda").half()
c = torch.full(({CASE.m}, {CASE.n}), float("nan"), device="cuda")
run(a, b, c)
assert torch.equal(c.double(), a.double() @ b.double().t())
print("equal")
"""
    search = [p for p in sys.path if p and Path(p).resolve() not in (ROOT, ROOT / "tests" / "gpu")]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if "find_spec" in done.stderr:
        pytest.skip("the package is installed in this environment's site-packages")
    assert done.stdout.strip() == "equal", done.stderr
