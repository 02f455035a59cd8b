"""Replayed graphs with a stand-in for CUDA's: a capture keeps the call, and a replay repeats it."""

import contextlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch


class Stream:
    def wait_stream(self, other):
        pass


class Graph:
    made = 0

    def replay(self):
        self.repeat()


@pytest.fixture
def replay(monkeypatch):
    from tvm_hopper.torch import replay

    Graph.made = 0

    @contextlib.contextmanager
    def capture(graph, capture_error_mode):
        Graph.made += 1
        call.graph = graph
        yield
        call.graph = None

    def call(*given):
        """Add numbers and weights into the memory of the first run of a graph."""
        x, size, weight = given
        out = x * size + weight
        if call.graph is not None:
            call.graph.repeat = torch.inference_mode()(lambda: out.copy_(x * size + weight))
        return [out, None, size]

    call.graph = None
    place = lambda i: SimpleNamespace(place=i)  # noqa: E731
    call.imported = SimpleNamespace(sizes={"s0": 1}, arguments=(place(0), place(2)))
    call.index, call.device = None, None
    fake = {"CUDAGraph": Graph, "graph": capture, "Stream": Stream, "current_stream": Stream}
    fake |= {"device": contextlib.nullcontext, "stream": contextlib.nullcontext}
    for name, value in fake.items():
        monkeypatch.setattr(torch.cuda, name, value)
    capturing = SimpleNamespace(now=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing.now)
    return SimpleNamespace(
        made=replay.ReplayedGraph(call, [2]), module=replay, call=call, capturing=capturing
    )


def test_a_graph_for_each_set_of_sizes_and_of_weights(replay):
    weight, kept = torch.ones(4), []
    for step, (size, graphs) in enumerate([(2, 1), (2, 1), (3, 2), (2, 2)]):
        x = torch.full((4,), float(step))
        out, none, number = replay.made(x, size, weight)
        assert (none, number, Graph.made) == (None, size, graphs)
        kept.append((out, x * size + weight))
    for out, want in kept:  # later replays leave the results of earlier ones alone
        assert torch.equal(out, want)
    weight.add_(1)  # in place: read where it lies
    assert torch.equal(replay.made(x, 2, weight)[0], x * 2 + 2)
    assert Graph.made == 2
    moved = torch.zeros(4)
    assert torch.equal(replay.made(x, 2, moved)[0], x * 2)
    assert Graph.made == 3


def test_inputs_of_one_mode_serve_the_other(replay):
    weight, x = torch.ones(4), torch.ones(4)
    with torch.inference_mode():
        replay.made(torch.zeros(4), 2, weight)
    assert torch.equal(replay.made(x, 2, weight)[0], x * 2 + 1)


def test_few_graphs_are_kept_and_none_inside_of_another(replay, monkeypatch):
    monkeypatch.setattr(replay.module, "MOST_GRAPHS", 2)
    x, weight = torch.ones(4), torch.ones(4)
    for size in (1, 2, 1, 3, 1, 2):  # 2 is forgotten for 3
        assert torch.equal(replay.made(x, size, weight)[0], x * size + 1)
    assert Graph.made == 4
    assert len(replay.made.graphs) == 2
    replay.capturing.now = True
    assert torch.equal(replay.made(x, 9, weight)[0], x * 9 + 1)
    assert Graph.made == 4
