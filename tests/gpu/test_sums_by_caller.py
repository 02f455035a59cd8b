"""Sums whose parts meet where the caller has memory for it: which kernels run, and that none races.

A call with PyTorch's tensors takes the workspace from PyTorch's allocator; one with TVM's own has
no allocator, and runs in clusters.
"""

import threading

import pytest

from benchmarks.matmul_case import Case, build, check, shapes
from tvm_hopper import schedule as hs

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")

RUNS = 50
CASE = Case(
    344,
    296,
    5568,
    "NT",
    "bfloat16",
    "bfloat16",
    {"tile": (128, 80, 64), "split_k": hs.SplitK(8, "caller")},
)


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.fixture(scope="module")
def run():
    return build(CASE)["main"]


def as_tvm(run):
    """Call with TVM's own tensors, on PyTorch's stream."""

    def call(*tensors):
        with tvm_ffi.use_torch_stream():
            run(*map(tvm_ffi.from_dlpack, tensors))

    return call


def ways(run):
    return {"torch": run, "tvm": as_tvm(run)}


def make(seed, device="cuda"):
    torch.manual_seed(seed)
    made = {"dtype": torch.bfloat16, "device": device}
    a, b = shapes(CASE, CASE.m)
    return torch.randn(a, **made), torch.randn(b, **made), torch.empty(CASE.m, CASE.n, **made)


def allocations():
    return torch.cuda.memory_stats()["allocation.all.allocated"]


@pytest.mark.parametrize("parts", [2, 12, 64])
@pytest.mark.parametrize("k", [1000, 20000])
def test_values(parts, k):
    fields = {"tile": (128, 64, 64), "split_k": hs.SplitK(parts, "caller")}
    one = Case(200, 136, k, "NT", "bfloat16", "bfloat16", fields)
    for call in ways(build(one)["main"]).values():
        check(one, call)


def test_who_gives_the_memory(run):
    tensors = make(0)
    before = allocations()
    ways(run)["tvm"](*tensors)
    assert allocations() == before
    run(*tensors)
    assert allocations() == before + 1


@pytest.mark.parametrize("way", ["torch", "tvm"])
def test_one_thread_on_two_streams(run, way):
    call = ways(run)[way]
    sets = [make(seed) for seed in range(2)]
    want = []
    for tensors in sets:
        call(*tensors)
        torch.cuda.synchronize()
        want.append(tensors[2].clone())
    streams = [torch.cuda.Stream() for _ in sets]
    outs = [[] for _ in sets]
    torch.cuda.synchronize()  # other streams read what this one has made
    for _ in range(RUNS):
        for i, (stream, (a, b, _)) in enumerate(zip(streams, sets, strict=True)):
            with torch.cuda.stream(stream):
                out = torch.empty_like(want[i])
                call(a, b, out)
                outs[i].append(out)
    torch.cuda.synchronize()
    assert all(torch.equal(out, want[i]) for i in range(2) for out in outs[i])


@pytest.mark.parametrize("way", ["torch", "tvm"])
def test_two_threads(run, way):
    call = ways(run)[way]
    wrong = []

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            a, b, out = make(seed)
            call(a, b, out)
            torch.cuda.current_stream().synchronize()
            want = out.clone()
            for _ in range(RUNS):
                out.zero_()
                call(a, b, out)
                wrong.append(int((out != want).sum()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == [0] * (2 * RUNS)


@pytest.mark.parametrize("way", ["torch", "tvm"])
def test_two_graphs_at_once(run, way):
    """Nothing was called before the capture: it may not allocate but from the graph's own pool."""
    fresh = build(CASE)["main"]
    call = ways(fresh)[way]
    sets, graphs = [make(seed) for seed in range(2)], []
    for tensors in sets:
        graph = torch.cuda.CUDAGraph()
        with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
            call(*tensors)
        graphs.append(graph)
    want = []
    for graph, tensors in zip(graphs, sets, strict=True):
        graph.replay()
        torch.cuda.synchronize()
        want.append(tensors[2].clone())
    assert not torch.equal(*want)
    streams = [torch.cuda.Stream() for _ in sets]
    for _ in range(RUNS):
        for tensors in sets:
            tensors[2].zero_()
        torch.cuda.synchronize()
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(x[2], y) for x, y in zip(sets, want, strict=True))


@pytest.mark.parametrize("way", ["torch", "tvm"])
def test_two_devices(run, way):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    call = ways(run)[way]
    sets = [make(seed, f"cuda:{seed}") for seed in range(2)]
    for tensors in sets:
        with torch.cuda.device(tensors[0].device):
            call(*tensors)
    for i in range(2):
        torch.cuda.synchronize(i)
    want = [x[2].clone() for x in sets]
    for _ in range(RUNS):
        for tensors in sets:
            with torch.cuda.device(tensors[0].device):
                call(*tensors)
        for i in range(2):
            torch.cuda.synchronize(i)
        assert all(torch.equal(x[2], y) for x, y in zip(sets, want, strict=True))


MODES = [
    (100, 200, 1000, (64, 96, 64), 3),  # ragged, parts that end early
    (344, 296, 5568, (128, 80, 64), 8),
    (128, 512, 20000, (128, 256, 64), 40),
    (256, 512, 8192, (128, 64, 64), 64),  # hundreds of blocks, one step or two each
    (1000, 1032, 7000, (192, 128, 64), 15),  # more blocks than SMs
]


def in_mode(m, n, k, tile, parts, mode, out_dtype):
    config = {"tile": tile, "split_k": hs.SplitK(parts, mode)}
    return Case(m, n, k, "NT", "bfloat16", out_dtype, config)


@pytest.mark.parametrize("mode", ["serial", "atomic"])
@pytest.mark.parametrize(("m", "n", "k", "tile", "parts"), MODES)
def test_other_modes(m, n, k, tile, parts, mode):
    """Sums in float32: each part that is added to a bfloat16 would be rounded."""
    one = in_mode(m, n, k, tile, parts, mode, "float32")
    for call in ways(build(one)["main"]).values():
        check(one, call)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_parts_that_are_rounded_one_by_one(dtype):
    config = {"tile": (128, 64, 64), "split_k": hs.SplitK(4, "atomic")}
    one = Case(200, 136, 512, "NT", dtype, dtype, config)
    run = build(one)["main"]
    made = {"dtype": getattr(torch, dtype), "device": "cuda"}
    a, b = torch.randn(200, 512, **made), torch.randn(136, 512, **made)
    out = torch.full((200, 136), float("nan"), **made)
    run(a, b, out)
    want = a.double() @ b.double().t()
    error = float((out.double() - want).norm() / want.norm())
    assert error < {"float16": 1e-3, "bfloat16": 8e-3}[dtype]


@pytest.mark.parametrize("way", ["torch", "tvm"])
@pytest.mark.parametrize(("m", "n", "k", "tile", "parts"), [MODES[1], MODES[3], MODES[4]])
def test_one_after_another_gives_the_same_bits(m, n, k, tile, parts, way):
    """A hundred runs under load from a second stream, each on memory of its own."""
    case = in_mode(m, n, k, tile, parts, "serial", "bfloat16")
    call = ways(build(case)["main"])[way]
    made = {"dtype": torch.bfloat16, "device": "cuda"}
    a, b = (torch.randn(x, **made) for x in shapes(case, case.m))
    out = torch.empty(m, n, **made)
    call(a, b, out)
    torch.cuda.synchronize()
    want = out.clone()
    other, noise = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    for _ in range(100):
        with torch.cuda.stream(other):
            noise @ noise
        out.zero_()
        call(a, b, out)
        assert torch.equal(out, want)
