"""What only a GPU can show: our compile step in TVM's own road, streams and graphs."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir

from tvm_hopper import CompileError, capture, schedule as hs
from tvm_hopper.cuda_build import compilers
from tvm_hopper.testing import workloads

pytestmark = pytest.mark.gpu
H200 = "nvidia/nvidia-h200"


@pytest.fixture(scope="module")
def size() -> int:
    return 1024


@pytest.fixture(scope="module")
def built(size):
    sch = s_tir.Schedule(workloads.matmul(size, size, size))
    hs.matmul(sch, "C")
    return tvm.compile(sch.mod, target=H200)


@pytest.fixture(scope="module")
def tensors(size):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    a, b = (torch.randint(-2, 3, (size, size), device="cuda").half() for _ in "ab")
    return a, b, a.float() @ b.float().t()


def run(built, a, b):
    import torch

    c = torch.full((a.shape[0], b.shape[0]), float("nan"), device="cuda")
    built["main"](a, b, c)
    return c


def test_tvm_loads_the_cubin_that_we_compiled(built, tensors) -> None:
    import torch

    a, b, expected = tensors
    assert torch.equal(run(built, a, b), expected)
    source = capture.lookup(built).source
    key = (compilers.source_hash(source), "nvrtc", False)
    assert key in compilers._results, "TVM compiled our kernel by itself"


def test_a_bad_log_is_an_error_of_tvm_compile(monkeypatch) -> None:
    def bad(source: str, arch: str, fast_math: bool) -> tuple[bytes, str]:
        return b"", "ptxas info : (C7510) wgmma serialized"

    monkeypatch.setitem(compilers._COMPILERS, "nvrtc", bad)
    sch = s_tir.Schedule(workloads.matmul(384, 384, 384))
    hs.matmul(sch, "C")
    with pytest.raises(CompileError, match="found C7510 wgmma serialized"):
        tvm.compile(sch.mod, target=H200)["main"]


def test_a_torch_stream_gives_the_same(built, tensors) -> None:
    import torch
    import tvm_ffi

    a, b, expected = tensors
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with tvm_ffi.use_torch_stream(torch.cuda.stream(stream)):
        c = run(built, a, b)
    stream.synchronize()
    assert torch.equal(c, expected)


def test_a_captured_graph_replays_to_the_same(built, tensors) -> None:
    import torch
    import tvm_ffi

    a, b, expected = tensors
    c = torch.full_like(expected, float("nan"))
    built["main"](a, b, c)  # modules load outside of the capture
    torch.cuda.synchronize()
    c.fill_(float("nan"))
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        built["main"](a, b, c)
    c.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(c, expected)


def test_a_foreign_neighbour_runs_beside_ours(tensors) -> None:
    from . import _programs

    sch = s_tir.Schedule(workloads.matmul(256, 256, 256))
    hs.matmul(sch, "C")
    mod = tvm.IRModule(
        {
            "gemm": sch.mod["main"].with_attr("global_symbol", "gemm"),
            "add": _programs.add_one().mod["main"].with_attr("global_symbol", "add"),
        }
    )
    built = tvm.compile(mod, target=H200)
    device = tvm.cuda(0)
    x = np.arange(1024, dtype="float32")
    y = tvm.runtime.tensor(np.zeros_like(x), device)
    built["add"](tvm.runtime.tensor(x, device), y)
    np.testing.assert_array_equal(y.numpy(), x + 1)
    p = np.ones((256, 256), "float16")
    c = tvm.runtime.tensor(np.zeros((256, 256), "float32"), device)
    built["gemm"](tvm.runtime.tensor(p, device), tvm.runtime.tensor(p, device), c)
    np.testing.assert_array_equal(c.numpy(), np.full((256, 256), 256, "float32"))
