"""Kernels that begin early wait for what they read, and for who still reads what they write."""

import pytest
import tvm
from tvm import s_tir

from tvm_hopper import schedule as hs
from tvm_hopper.testing import columns, memory_bound

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")
pytestmark = pytest.mark.gpu

STEPS = 200


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def built(rows, early):
    sch = s_tir.Schedule(memory_bound.rms_norm(rows, 4096))
    hs.row_reduction(sch, config=hs.RowReductionConfig(early_launch=early))
    return tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]


def chain(norm, x, w, between):
    """Norms of norms, in two tensors by turns: each reads what the last wrote, and overwrites."""
    one, other = x.clone(), torch.empty_like(x)
    for step in range(STEPS):
        norm(one, w, other)
        if between and step % 3 == 0:
            other += 0.25  # a kernel of PyTorch's behind ours, and in front of the next
        one, other = other, one
    return one


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("rows", [1, 32, 300])
def test_a_chain_of_early_kernels_has_the_bits_of_one_that_waits(rows, between):
    torch.manual_seed(rows)
    x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    early, late = built(rows, True), built(rows, False)
    wanted = chain(late, x, w, between)
    assert torch.equal(chain(early, x, w, between), wanted)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph, stream=stream)):
        got = chain(early, x, w, between)
    for _ in range(5):
        got.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(got, wanted)


def test_sums_of_columns_that_begin_early_see_what_was_written():
    sch = s_tir.Schedule(columns.column_sum(1024, 512))
    hs.column_reduction(sch)
    kernel = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    torch.manual_seed(0)
    x = torch.randn(1024, 512, device="cuda", dtype=torch.bfloat16)

    def chain(waits):
        given, total = x.clone(), torch.zeros(512, device="cuda")
        one = torch.empty(512, device="cuda", dtype=torch.bfloat16)
        for step in range(STEPS):
            kernel(given, one)
            if waits:
                torch.cuda.synchronize()
            if step % 2:  # else two of ours one behind the other
                total += one
                given.copy_(given.roll(1, 1))
        return total

    assert torch.equal(chain(False), chain(True))
