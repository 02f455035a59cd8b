"""Groups of rows whose lengths a tensor says, on a GPU."""

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T
from tvm.target import Target

from tests.schedule.test_sorted_rows import experts
from tvm_hopper import schedule as hs
from tvm_hopper.testing.ragged import UNTOUCHED, ragged

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
H200 = Target("nvidia/nvidia-h200")


def built(mod):
    sch = s_tir.Schedule(mod)
    with H200:
        hs.matmul(sch, "C")
    return tvm.compile(sch.mod, target=H200)["main"]


def reference(a, b, counts, first=None):
    """Return the sums of all groups in float64, a list of one tensor for each."""
    parts = [
        a[e, :n] if first is None else a[first[e] : first[e] + n] for e, n in enumerate(counts)
    ]
    return [x.double() @ y.double().T for x, y in zip(parts, b, strict=True)]


def counts_of(rows, groups, way, rng):
    """Draw how many rows groups have: any, 63 and 65 in turn, all in one, or one each."""
    if way == "one":
        return [rows * (e == groups // 2) for e in range(groups)]
    if way == "63 and 65":
        return [min((63, 65, 0, 1)[e % 4], rows // groups) for e in range(groups)]
    cuts = np.sort(rng.integers(0, rows + 1, groups - 1))
    return np.diff([0, *cuts.tolist(), rows - rows // 8 if groups == 1 else rows]).tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", ["any", "63 and 65", "one"])
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "groups"),
    [(4096, 768, 2048, 8), (1000, 1000, 520, 5), (8192, 512, 256, 256), (70, 128, 64, 3)],
)
def test_offsets(rows, columns, depth, groups, way, dtype):
    rng = np.random.default_rng(rows + groups)
    counts = counts_of(rows, groups, way, rng)
    first = np.cumsum([0, *counts]).tolist()
    kind = getattr(torch, dtype)
    a = torch.randn(rows, depth, device="cuda").to(kind)
    b = torch.randn(groups, columns, depth, device="cuda").to(kind)
    out = torch.full((rows, columns), float(UNTOUCHED), device="cuda")
    run = built(ragged(rows, columns, depth, groups, dtype))
    run(a, b, torch.tensor(first, dtype=torch.int32, device="cuda"), out)
    torch.cuda.synchronize()
    want = torch.cat(reference(a, b, counts, first))
    torch.testing.assert_close(out[: first[-1]].double(), want, rtol=1e-4, atol=1e-4 * depth**0.5)
    assert bool((out[first[-1] :] == UNTOUCHED).all())


@pytest.mark.parametrize("counts", [[0, 512, 1, 63], [256, 256, 256, 256], [0, 0, 0, 0]])
def test_counts(counts):
    a = torch.randn(4, 512, 256, device="cuda").half()
    b = torch.randn(4, 320, 256, device="cuda").half()
    bias = torch.randn(4, 320, device="cuda")
    out = torch.full((4, 512, 320), float(UNTOUCHED), device="cuda").half()
    mod = ragged(512, 320, 256, 4, layout="counts", epilogue="bias", out_dtype="float16")
    built(mod)(a, b, torch.tensor(counts, dtype=torch.int32, device="cuda"), bias, out)
    torch.cuda.synchronize()
    for e, want in enumerate(reference(a, b, counts)):
        got = out[e, : counts[e]].double()
        torch.testing.assert_close(got, want + bias[e].double(), rtol=2e-3, atol=2e-2)
        assert bool((out[e, counts[e] :] == UNTOUCHED).all())


def test_rows_that_a_tensor_names():
    """Gathered by cp.async, stored where they came from."""
    text = ragged(1024, 256, 512, 4)["main"].script()
    changes = [
        ("A[v, vk]", "A[X[v], vk]"),
        ("C[v, vj]", "C[X[v], vj]"),
        ('P: T.Buffer((5,), "int32")', 'X: T.Buffer((1000,), "int32"), P: T.Buffer((5,), "int32")'),
    ]
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    func = tvm.script.from_source(text[text.index("@T.prim_func") :], extra_vars={"T": T})
    run = built(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    order = torch.randperm(1024, device="cuda")[:1000]
    a = torch.randn(1024, 512, device="cuda").half()
    b = torch.randn(4, 256, 512, device="cuda").half()
    first = [0, 65, 65, 700, 1000]
    out = torch.full((1024, 256), float(UNTOUCHED), device="cuda")
    run(a, b, order.int(), torch.tensor(first, dtype=torch.int32, device="cuda"), out)
    torch.cuda.synchronize()
    want = torch.full_like(out, UNTOUCHED, dtype=torch.float64)
    want[order] = torch.cat(reference(a[order], b, np.diff(first).tolist(), first))
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=3e-3)


@pytest.mark.parametrize("named", ["any", "one"])
def test_rows_that_name_their_matrix_are_sorted(named):
    """The tokens of a model's experts."""
    rows, columns, depth, matrices = 512, 1024, 512, 8
    func = experts(rows, columns, depth, matrices)
    run = built(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    a = torch.randn(rows, depth, 1, device="cuda").half()
    b = torch.randn(matrices, columns, depth, device="cuda").half()
    e = torch.randint(0, matrices if named == "any" else 1, (rows,), device="cuda")
    out = torch.full((rows, columns, 1), float("nan"), device="cuda")
    run(b, e, a, out)
    torch.cuda.synchronize()
    want = torch.stack([b[int(x)].double() @ y.double() for x, y in zip(e, a, strict=True)])
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=3e-3)


def test_a_captured_graph_follows_the_offsets():
    run = built(ragged(1024, 256, 512, 4))
    a = torch.randn(1024, 512, device="cuda").half()
    b = torch.randn(4, 256, 512, device="cuda").half()
    places = torch.tensor([0, 256, 512, 768, 1024], dtype=torch.int32, device="cuda")
    out = torch.zeros(1024, 256, device="cuda")
    run(a, b, places, out)  # TVM loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(a, b, places, out)
    for first in ([0, 1, 1, 700, 1000], [0, 0, 0, 0, 1024], [0, 65, 128, 129, 129]):
        places.copy_(torch.tensor(first, dtype=torch.int32))
        out.fill_(UNTOUCHED)
        graph.replay()
        torch.cuda.synchronize()
        want = torch.cat(reference(a, b, np.diff(first).tolist(), first))
        torch.testing.assert_close(out[: first[-1]].double(), want, rtol=1e-4, atol=2e-3)
        assert bool((out[first[-1] :] == UNTOUCHED).all())
