"""Few rows whose warps load what they multiply, against float64 on the hardware; early weights."""

import pytest

from benchmarks.matmul_case import Case, build, check
from tvm_hopper import schedule as hs

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")

LAYERS, WIDTH = 12, 2048


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize(
    "case",
    [
        Case(8, 4096, 4096, "NT", "bfloat16", "bfloat16", {"form": hs.DirectShape(8, 32, 128)}),
        Case(2, 4096, 14336, "NT", "float16", "float16", {"form": "direct"}),
        Case(3, 3001, 1000, "NT", "float16", "float32", {"form": hs.DirectShape(4, 16, 64)}),
        Case(16, 136, 29440, "NN", "bfloat16", "bfloat16", {"form": hs.DirectShape(8, 64, 32)}),
        Case(64, 72, 200, "TT", "float16", "float16", {"form": hs.DirectShape(4, 16, 32)}),
        Case(24, 1000, 520, "TN", "bfloat16", "bfloat16", {"form": "direct"}),
        Case(8, 512, 8, "NT", "bfloat16", "float32", {"form": hs.DirectShape(1, 16, 32)}),
        Case(
            *(2, 2056, 512, "NT", "float16", "float16", {"form": "direct"}),
            {"epilogue": ("bias_col", "silu", "residual")},
        ),
        Case(None, 4096, 1024, "NT", "bfloat16", "bfloat16", sizes=(0, 1, 2, 8, 9, 16, 17, 100)),
    ],
    ids=lambda case: case.name,
)
def test_products(case):
    check(case, build(case)["main"])


@pytest.mark.parametrize(
    ("rows", "config"), [(1, {"form": "dots"}), (1, {"form": "direct"}), (8, {"form": "direct"})]
)
def test_a_chain_of_layers_that_begin_early_has_the_same_bits(rows, config):
    """Each takes the last one's output: what begins before it has ended waits for it."""
    made = {"dtype": torch.bfloat16, "device": "cuda"}
    weights = [torch.randn((WIDTH, WIDTH), **made) / WIDTH**0.5 for _ in range(LAYERS)]
    states = [torch.randn((rows, WIDTH), **made) for _ in range(LAYERS + 1)]
    case = [rows, WIDTH, WIDTH, "NT", "bfloat16", "bfloat16"]
    late, early = (
        build(Case(*case, config | {"early_launch": "weights" if x else None}))["main"]
        for x in (False, True)
    )

    def chain(run):
        for n, weight in enumerate(weights):
            run(*map(tvm_ffi.from_dlpack, (states[n], weight, states[n + 1])))
        return states[-1]

    want = chain(late).clone()
    for _ in range(30):
        for state in states[1:]:
            state.fill_(float("nan"))
        assert torch.equal(chain(early), want)
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        chain(early)
    for state in states[1:]:
        state.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(states[-1], want)
