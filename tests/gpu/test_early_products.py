"""Products whose kernels begin while the launch in front of them ends, on the hardware."""

import pytest

from benchmarks.matmul_case import Case, build
from tvm_hopper import schedule as hs

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")

LAYERS = 6


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


class Chain:
    """Layers that each take the last one's output."""

    def __init__(self, rows, width, config):
        made = {"dtype": torch.bfloat16, "device": "cuda"}
        self.weights = [torch.randn((width, width), **made) / width**0.5 for _ in range(LAYERS)]
        self.states = [torch.randn((rows, width), **made) for _ in range(LAYERS + 1)]
        case = [rows, width, width, "NT", "bfloat16", "bfloat16"]
        late, self.early = (
            build(Case(*case, config | {"early_launch": x}))["main"] for x in (False, True)
        )
        self.run(late)
        self.want = self.states[-1].clone()

    def run(self, kernel):
        for n, weight in enumerate(self.weights):
            kernel(*map(tvm_ffi.from_dlpack, (self.states[n], weight, self.states[n + 1])))

    def forget(self):
        for state in self.states[1:]:
            state.fill_(float("nan"))

    def is_right(self):
        torch.cuda.synchronize()
        return torch.equal(self.states[-1], self.want)


@pytest.mark.parametrize(
    ("rows", "width", "config"),
    [
        (1024, 1024, {}),
        (64, 256, {}),
        (16, 4096, {}),
        (300, 2048, {"tile": (128, 128, 64), "cluster": (2, 1)}),
        (128, 2048, {"tile": (128, 128, 64), "split_k": hs.SplitK(4, "workspace")}),
        (640, 512, {"tile": (64, 64, 64), "split_k": hs.SplitK(2, "serial")}),
    ],
)
def test_the_same_bits_launch_after_launch_and_in_graphs(rows, width, config):
    chain = Chain(rows, width, config)
    for _ in range(20):
        chain.forget()
        chain.run(chain.early)
        assert chain.is_right()
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        chain.run(chain.early)
    for _ in range(20):
        chain.forget()
        graph.replay()
        assert chain.is_right()


def test_behind_copies_and_where_two_streams_of_a_graph_meet():
    chain = Chain(256, 512, {})
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    beside, source = torch.zeros(1 << 20, device="cuda"), chain.states[0].clone()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        stream = torch.cuda.current_stream()
        side.wait_stream(stream)
        chain.states[0].copy_(source)
        with torch.cuda.stream(side):
            beside.add_(1)
            chain.weights[0].mul_(1.0)
        stream.wait_stream(side)
        chain.run(chain.early)
        chain.states[1].zero_()
        chain.run(chain.early)
    for _ in range(20):
        chain.forget()
        chain.states[0].zero_()
        graph.replay()
        assert chain.is_right()
