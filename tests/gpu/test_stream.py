"""Equal shares of all tiles' steps for persistent blocks: values, the same bits, two streams."""

import pytest

from benchmarks.matmul_case import Case, build, check, shapes

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")

RUNS = 100
STREAM = {"split_k": "stream"}


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def as_tvm(run):
    """Call with TVM's own tensors, which come without an allocator."""

    def call(*tensors):
        with tvm_ffi.use_torch_stream():
            run(*map(tvm_ffi.from_dlpack, tensors))

    return call


CASES = [
    Case(1000, 1032, 7000, "NT", "bfloat16", "bfloat16", {"tile": (192, 128, 64), **STREAM}),
    Case(344, 296, 5568, "NN", "float16", "float16", {"tile": (128, 80, 64), **STREAM}),
    Case(128, 512, 20000, "NT", "bfloat16", "bfloat16", {"tile": (128, 256, 64), **STREAM}),
    Case(4000, 3000, 520, "TN", "float16", "float16", {"tile": (128, 192, 64), **STREAM}),
    Case(3000, 2000, 1000, "NT", "float16", "float32", {"consumers": 2, **STREAM}),
    Case(40, 4096, 4096, "NT", "bfloat16", "bfloat16", {"form": "transposed", **STREAM}),
    Case(5000, 1000, 640, "NT", "bfloat16", "bfloat16", {"wgmma_pending": 1, **STREAM}),
    Case(
        700, 900, 3000, "NT", "float16", "float16", {**STREAM}, {"epilogue": ("bias_col", "gelu")}
    ),
    Case(700, 904, 3000, "NT", "float16", "float16", {**STREAM}, {"epilogue": ("residual",)}),
    Case(700, 904, 3000, "NT", "float16", "float16", {"persistent": 1000, **STREAM}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case):
    run = build(case)["main"]
    for call in (run, as_tvm(run)):
        check(case, call)


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_the_same_bits_under_load(case):
    """A hundred runs beside a second stream that is busy, and on two streams at once."""
    call = build(case)["main"]
    made = {"dtype": getattr(torch, case.dtype), "device": "cuda"}
    a, b = (torch.randn(x, **made) for x in shapes(case, case.m))
    out = torch.empty(case.m, case.n, **made)
    call(a, b, out)
    torch.cuda.synchronize()
    want = out.clone()
    other, noise = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    for _ in range(RUNS):
        with torch.cuda.stream(other):
            noise @ noise
        out.zero_()
        call(a, b, out)
        assert torch.equal(out, want)
    streams, outs = [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for n in range(RUNS):
        with torch.cuda.stream(streams[n % 2]):
            one = torch.empty_like(want)
            call(a, b, one)
            outs.append(one)
    torch.cuda.synchronize()
    assert all(torch.equal(one, want) for one in outs)


def test_graphs():
    """Nothing was called before the capture; words that tell of sums are zero in each replay."""
    case = CASES[0]
    call = build(case)["main"]
    made = {"dtype": getattr(torch, case.dtype), "device": "cuda"}
    a, b = (torch.randn(x, **made) for x in shapes(case, case.m))
    out = torch.empty(case.m, case.n, **made)
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        call(a, b, out)
    graph.replay()
    torch.cuda.synchronize()
    want = out.clone()
    for _ in range(RUNS // 4):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, want)
