"""Kernels that move elements, on a GPU: permuted dimensions, concatenation, padding, parts."""

import pytest
import tvm
from tvm import s_tir, te, topi

from tvm_hopper import schedule as hs

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

MARGIN = 64  # elements around the output that nothing may touch


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def check(inputs, output, reference):
    """Schedule and run a program on normal inputs; compare with PyTorch, margins too."""
    func = te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main")
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    hs.pointwise(sch)
    run = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    shapes = [[int(i) for i in x.shape] for x in inputs]
    types = [getattr(torch, str(x.dtype)) for x in inputs]
    given = [(torch.randn(s, device="cuda") * 9).to(t) for s, t in zip(shapes, types, strict=True)]
    want = reference(*given)
    whole = torch.full((want.numel() + 2 * MARGIN,), 77, device="cuda").to(want.dtype)
    out = whole[MARGIN:-MARGIN].view(want.shape)
    for _ in range(3):
        run(*given, out)
    assert torch.equal(out, want)
    assert bool((whole[:MARGIN] == 77).all() and (whole[-MARGIN:] == 77).all())


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((8, 496, 400), (0, 2, 1)),
        ((8, 64, 28, 28), (0, 2, 3, 1)),
        ((3, 37, 251), (2, 1, 0)),
        ((2, 3, 224, 224), (0, 2, 3, 1)),
        ((34, 5, 36, 7), (3, 1, 2, 0)),
    ],
    ids=str,
)
def test_permuted_dimensions(shape, order, dtype):
    x = te.placeholder(shape, dtype, name="X")
    y = te.compute(
        [shape[i] for i in order],
        lambda *i: te.max(
            x(*(i[order.index(a)] for a in range(len(shape)))), tvm.tirx.const(0, dtype)
        ),
        name="Y",
    )
    check([x], y, lambda x: x.permute(order).clamp(min=0))


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
@pytest.mark.parametrize("size", [13, 28, 64])
def test_padding(size, dtype):
    x = te.placeholder((8, 64, size, size), dtype, name="X")
    y = topi.nn.relu(topi.nn.pad(x, [0, 0, 1, 1], [0, 0, 1, 1]))
    check([x], y, lambda x: torch.nn.functional.pad(x, (1, 1, 1, 1)).clamp(min=0))


@pytest.mark.parametrize("columns", [(320, 64), (40, 40, 16), (33, 31)], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_concatenation(columns, dtype):
    parts = [te.placeholder((1999, n), dtype, name=f"X{i}") for i, n in enumerate(columns)]
    y = topi.nn.relu(topi.concatenate(parts, axis=1))
    check(parts, y, lambda *x: torch.cat(x, 1).clamp(min=0))


@pytest.mark.parametrize("size", [14, 28])
def test_channels_of_images(size):
    x = te.placeholder((4, 64, size, size), "float16", name="X")
    y = te.compute(
        (4, 32, size, size), lambda n, c, h, w: x[n, c, h, w] * x[n, c + 32, h, w], name="Y"
    )
    check([x], y, lambda x: x[:, :32] * x[:, 32:])
