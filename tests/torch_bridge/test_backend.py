"""The backend of `torch.compile`, on the processor: graphs, sizes, strides, types, fallbacks."""

import copy

import pytest

import tvm_hopper
from tvm_hopper.errors import HopperWarning, OptionError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch and TVM's importer
CPU = {"target": "llvm", "strict": True}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    tvm_hopper.torch.report(clear=True)
    with torch.no_grad():
        yield


def compiled(model, **options):
    return torch.compile(model, backend=tvm_hopper.torch.backend, options={**CPU, **options})


class Block(torch.nn.Module):
    """Attention, a norm, a convolution with a bias, and products."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)
        self.norm = torch.nn.LayerNorm(32)
        self.conv = torch.nn.Conv1d(32, 32, 3, padding=1)

    def forward(self, x):
        q, k, v = (
            y.unflatten(-1, (2, 16)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1)
        )
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).flatten(-2)
        return self.conv(y.transpose(1, 2)).transpose(1, 2), x.shape[1]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_model_with_sizes_that_change(dtype):
    torch.manual_seed(0)
    model = Block().to(getattr(torch, dtype)).eval()
    fast = compiled(model)
    for length in (8, 9, 13, 20):
        x = torch.randn(2, length, 32, dtype=getattr(torch, dtype))
        (got, size), (own, _) = fast(x), model(x)
        want = copy.deepcopy(model).double()(x.double())[0]
        assert (got.dtype, got.shape, size) == (own.dtype, own.shape, length)
        limit = 2 * (own.double() - want).norm() + 1e-6 * want.norm()
        assert (got.double() - want).norm() <= limit
    said = tvm_hopper.torch.report()
    assert [x.reason for x in said] == ["", ""]  # one with a number, one with a symbol
    assert "graph 1: " in str(said)
    assert "built in" in str(said)


def test_inputs_lie_as_they_like():
    weight = torch.randn(48, 32)

    def model(x):
        return x @ weight + 1, x.sum(-1), None

    fast = compiled(model)
    whole = torch.randn(49, 64)
    views = [
        *(whole[1:, :48], whole[:48].t()[:40, :], torch.randn(48, 40).t()),
        torch.randn(1, 48).expand(40, 48),
        torch.randn(40 * 48 + 1)[1:].view(40, 48),  # starts inside of a vector
    ]
    for x in views:
        torch._dynamo.reset()
        for got, want in zip(fast(x)[:2], model(x)[:2], strict=True):
            torch.testing.assert_close(got, want)


def test_results_are_memory_of_their_own():
    table = torch.arange(8, dtype=torch.float32)
    fast = compiled(lambda x: (x + 1, table * 2, torch.ones(3)))
    first = fast(torch.zeros(4))
    for x in first:
        x.fill_(7)
    for got, want in zip(
        fast(torch.zeros(4)), (torch.ones(4), 2 * table, torch.ones(3)), strict=True
    ):
        torch.testing.assert_close(got, want)
    assert all((x == 7).all() for x in first)


def test_inputs_that_a_model_changes_are_changed():
    def model(x, y):
        x.add_(y)
        return x * 2

    x, y = torch.randn(2, 16)
    want = x + y
    torch.testing.assert_close(compiled(model)(x, y), want * 2)
    torch.testing.assert_close(x, want)


def test_weights_are_not_copied_and_may_change():
    model = torch.nn.Linear(16, 16)
    fast = compiled(model)
    x = torch.randn(4, 16)
    torch.testing.assert_close(fast(x), model(x))
    model.weight.mul_(2)
    torch.testing.assert_close(fast(x), model(x))


def test_types_are_promoted_as_pytorch_does():
    def model(x, y, n):
        return torch.maximum(x, y) * n, torch.where(x > y, x, y), x.isinf().any()

    x, y, n = torch.randn(8).half(), torch.randn(8), torch.arange(8)
    x[2] = float("inf")
    for got, want in zip(compiled(model)(x, y, n), model(x, y, n), strict=True):
        torch.testing.assert_close(got, want)


def test_pytorch_runs_operators_that_are_unknown():
    def model(x, y):
        a = torch.special.bessel_j0((x + y).relu() * 2)
        return (a @ y + 1).relu(), a

    x, y = torch.randn(2, 4, 4)
    text = "operators that TVM's importer lacks: special_bessel_j0"
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=text):
        compiled(model)(x, y)
    torch._dynamo.reset()
    with pytest.warns(HopperWarning, match=f"PyTorch runs some of 7 operators: {text}"):
        got = compiled(model, strict=False)(x, y)
    torch.testing.assert_close(got, model(x, y))
    one = tvm_hopper.torch.report()[-1]
    assert len(one.executables) == 2
    assert "built in 2 parts" in str(one)
    alone = compiled(lambda x: torch.special.bessel_j0(x) + 1, strict=False)
    with pytest.warns(HopperWarning, match="PyTorch runs a graph of 2 operators"):
        alone(x)
    assert text in tvm_hopper.torch.report()[-1].reason
    with pytest.warns(HopperWarning, match="a tensor without elements"):
        assert compiled(lambda x: x + 1, strict=False)(torch.empty(0, 4)).shape == (0, 4)


def test_training_and_other_chips_are_pytorchs():
    model = torch.nn.Linear(4, 4)
    with torch.enable_grad(), pytest.warns(HopperWarning, match="need inference"):
        compiled(model, strict=False)(torch.randn(2, 4)).sum().backward()
    assert model.weight.grad is not None
    torch._dynamo.reset()
    with pytest.warns(HopperWarning, match="need a GPU of compute capability 9.0"):
        compiled(model, strict=False, target=None)(torch.randn(2, 4))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"options": {"stages": 3}}, "found option stages; need one of cuda_graphs, target"),
        ({"mode": "max-autotune"}, "found mode='max-autotune'"),
    ],
)
def test_options_are_checked(given, text):
    with pytest.raises(OptionError, match=text):
        tvm_hopper.torch.backend(torch.fx.symbolic_trace(lambda x: x), [], **given)


def test_our_pipeline_takes_a_graph(monkeypatch):
    """For sm_90a on a machine without one: built, and every kernel is ours."""
    zeros = torch.zeros(32, 64).half()
    monkeypatch.setattr("tvm_hopper.torch.graph_build.GraphCall", lambda *_: lambda *__: [zeros])
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))
    fast = compiled(model.half(), target="nvidia/nvidia-h200")
    assert torch.equal(fast(torch.randn(32, 64).half()), zeros)
    (one,) = tvm_hopper.torch.report()
    said = tvm_hopper.relax.report(one.executables[0])
    assert said.section("main").served["flops"] == 1
