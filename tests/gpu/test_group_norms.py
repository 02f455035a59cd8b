"""Reductions over several axes, and what is read elsewhere than at its own element, on a GPU."""

import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.testing import attention, group_norms

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

TARGET = "nvidia/nvidia-h200"
SHAPES = [  # batch, groups, channels of one, height, width
    (2, 4, 4, 8, 8),
    (1, 1, 3, 5, 7),
    (33, 8, 1, 16, 16),
    (64, 32, 8, 32, 32),
    (4, 32, 40, 32, 32),
    (2, 2, 64, 64, 64),
]


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def compiled(mod, helper, config=None):
    sch = s_tir.Schedule(mod)
    helper(sch, config=config)
    return tvm.compile(sch.mod, target=TARGET)["main"]


def check(got, want, tolerance=2e-2):
    error = (got.double() - want).abs() / (want.abs() + want.abs().mean())
    assert bool((error < tolerance).all()), float(error.max())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_group_norms(shape):
    batch, groups, channels, height, width = shape
    sizes = [(batch, groups * channels, height, width), *[(groups * channels,)] * 2]
    x, w, b = (torch.randn(s, device="cuda").bfloat16() for s in sizes)
    y = torch.full_like(x, float("nan"))
    compiled(group_norms.group_norm(*shape), hs.row_reduction)(x, w, b, y)
    given = [v.double() for v in (x, w, b)]
    check(y, torch.nn.functional.group_norm(given[0], groups, *given[1:], 1e-5))


def test_spatial_means():
    x = torch.randn((7, 65, 14, 14), device="cuda")
    y = torch.full((7, 65), float("nan"), device="cuda")
    compiled(group_norms.spatial_mean(7, 65, 14, 14), hs.row_reduction)(x, y)
    check(y, x.double().mean((2, 3)), 1e-4)


@pytest.mark.parametrize(
    ("tokens", "columns", "head"), [(300, 4096, 128), (33, 1024, 64), (5, 96, 12)], ids=str
)
def test_rotated_pairs(tokens, columns, head):
    x = torch.randn((tokens, columns), device="cuda").bfloat16()
    c, s = (torch.randn((tokens, head), device="cuda") for _ in range(2))
    y = torch.full_like(x, float("nan"))
    compiled(attention.rope(tokens, columns, head=head), hs.pointwise)(x, c, s, y)
    heads = x.double().view(tokens, -1, head)
    left, right = heads.chunk(2, -1)
    want = heads * c[:, None] + torch.cat((-right, left), -1) * s[:, None]
    check(y, want.view(tokens, columns))


def test_rows_of_a_table():
    rows, columns = 1000, 1024
    w = te.placeholder((5000, columns), "float16", name="W")
    p = te.placeholder((rows,), "int64", name="P")
    y = te.compute((rows, columns), lambda i, j: w[p[i], j], name="Y")
    kernel = compiled(tvm.IRModule({"main": te.create_prim_func([w, p, y])}), hs.pointwise)
    table = torch.randn((5000, columns), device="cuda").half()
    places = torch.randint(0, 5000, (rows,), device="cuda")
    got = torch.full((rows, columns), float("nan"), device="cuda").half()
    kernel(table, places, got)
    assert torch.equal(got, table[places])
