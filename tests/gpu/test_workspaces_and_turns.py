"""Sums by two kernels, and consumers in turn, on a GPU: values, and the same bits in each run."""

import pytest

from benchmarks.matmul_case import Case, build, check, shapes
from tvm_hopper import schedule as hs

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")

RUNS = 100


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def in_parts(m, n, k, tile, parts, **fields):
    config = {"tile": tile, "split_k": hs.SplitK(parts, "workspace")}
    return Case(m, n, k, "NT", "bfloat16", fields.pop("out_dtype", "bfloat16"), config | fields)


PARTS = [
    (64, 64, 64, (64, 64, 64), 2),  # one step, and a part with none
    (100, 200, 1000, (64, 96, 64), 3),  # ragged, parts that end early
    (344, 296, 5568, (128, 80, 64), 8),
    (128, 512, 20000, (128, 256, 64), 40),
    (256, 512, 8192, (128, 64, 64), 64),  # hundreds of blocks
]


@pytest.mark.parametrize(("m", "n", "k", "tile", "parts"), PARTS)
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
def test_sums_by_two_kernels(m, n, k, tile, parts, out_dtype):
    one = in_parts(m, n, k, tile, parts, out_dtype=out_dtype)
    check(one, build(one)["main"])


def test_sums_by_two_kernels_transposed():
    one = in_parts(17, 200, 5000, (128, 24, 64), 9, form="transposed")
    check(one, build(one)["main"])


@pytest.mark.parametrize(("m", "n", "k"), [(344, 296, 55680), (1024, 768, 28672)])
def test_what_is_chosen(m, n, k):
    given = hs.MatmulConfig(split_k="workspace")
    assert hs.choose_config(m, n, k, "bfloat16", given).split_mode == "workspace"
    one = Case(m, n, k, "NT", "bfloat16", "bfloat16", {"split_k": "workspace"})
    check(one, build(one)["main"])


def make(case):
    """Return inputs and an output, as torch has them and as TVM takes them."""
    made = {"dtype": torch.bfloat16, "device": "cuda"}
    a, b = shapes(case, case.m)
    tensors = torch.randn(a, **made), torch.randn(b, **made), torch.empty(case.m, case.n, **made)
    return tensors, [tvm_ffi.from_dlpack(x) for x in tensors]


def test_the_same_bits_in_each_run():
    """Under load of a second stream that runs kernels without workspaces, and in a graph."""
    case = in_parts(344, 296, 5568, (128, 80, 64), 8)
    run = build(case)["main"]
    (*_, out), ours = make(case)
    run(*ours)
    torch.cuda.synchronize()
    want = out.clone()
    other, noise = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    for _ in range(RUNS):
        with torch.cuda.stream(other):
            noise @ noise
        out.zero_()
        run(*ours)
        assert torch.equal(out, want)
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        run(*ours)
    for _ in range(RUNS):
        out.zero_()
        graph.replay()
        assert torch.equal(out, want)


TURNS = [
    (512, 1024, 64, (64, 128, 64), 2, {}),  # one step a tile
    (1000, 1032, 512, (128, 128, 64), 2, {}),  # ragged
    (4096, 4096, 1000, (64, 256, 64), 2, {}),
    (2048, 2048, 2048, (64, 192, 64), 3, {"wgmma_pending": 0}),
    (64, 256, 640, (64, 256, 64), 2, {"persistent": 1}),  # one tile
    (4000, 2048, 256, (192, 128, 64), 2, {"persistent": 7, "stages": 2}),
]


@pytest.mark.parametrize(("m", "n", "k", "tile", "consumers", "fields"), TURNS)
@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_consumers_in_turn(m, n, k, tile, consumers, fields, layout):
    config = {"tile": tile, "consumers": consumers, "schedule": "pingpong", **fields}
    one = Case(m, n, k, layout, "float16", "float16", config)
    check(one, build(one)["main"])


def test_consumers_in_turn_of_any_number_of_rows():
    config = {"tile": (128, 128, 64), "schedule": "pingpong"}
    one = Case(None, 1024, 512, "NT", "bfloat16", "bfloat16", config, sizes=(1, 100, 128, 3000))
    check(one, build(one)["main"])
