"""Producers whose threads copy by cp.async, alone and beside TMA, on a GPU."""

from __future__ import annotations

import pytest
import tvm

from tvm_hopper import schedule as hs
from tvm_hopper.testing import pointwise, step_products, workloads
from tvm_hopper.testing.pointwise import Tiling
from tvm_hopper.testing.step_products import ProductTiling

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

H200 = "nvidia/nvidia-h200"
BIG = {"tile": (128, 128, 64), "stages": 4, "consumers": 2}


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def check_product(problem: tuple[int, int, int], tiling: ProductTiling, layout: str) -> None:
    """Multiply small integers ten times, which is exact, into poison."""
    mod = workloads.matmul(*problem, layout)
    run = tvm.compile(step_products.schedule(mod, tiling).mod, target=H200)["main"]
    generator = torch.Generator(device="cuda").manual_seed(1)
    shapes = [shape for shape, _ in workloads.argument_types(mod)]
    a, b = (
        torch.randint(-2, 3, shape, device="cuda", generator=generator).half()
        for shape in shapes[:2]
    )
    left = (a if layout[0] == "N" else a.T).float()
    want = left @ (b if layout[1] == "N" else b.T).float()
    for _ in range(10):
        got = torch.full(shapes[2], float("nan"), device="cuda")
        run(a, b, got)
        torch.cuda.synchronize()
        assert torch.equal(got, want)


@pytest.mark.parametrize("problem", [(512, 512, 512), (1000, 1000, 1000), (64, 64, 8)])
@pytest.mark.parametrize("layout", ["NT", "NN", "TN"])
@pytest.mark.parametrize(
    "by", [("cp_async", "tma"), ("tma", "cp_async"), ("cp_async", "cp_async")], ids="-".join
)
def test_products(by, layout, problem):
    check_product(problem, ProductTiling(a=by[0], b=by[1], **BIG), layout)


@pytest.mark.parametrize("problem", [(1000, 1000, 1002), (999, 1002, 1004), (130, 66, 70)])
@pytest.mark.parametrize("layout", ["NT", "NN"])
def test_products_whose_rows_tma_cannot_take(layout, problem):
    check_product(problem, ProductTiling(a="auto", b="auto", **BIG), layout)


@pytest.mark.parametrize("by", [("cp_async", "tma"), ("cp_async", "cp_async")], ids="-".join)
def test_persistent_products_with_a_group_in_flight(by):
    tiling = ProductTiling(a=by[0], b=by[1], persistent=48, wgmma_pending=1, **BIG)
    check_product((1000, 1002, 1002 if by[1] == "cp_async" else 1008), tiling, "NT")


@pytest.mark.parametrize("load", ["cp_async", "auto"])
@pytest.mark.parametrize("shape", [(4096, 2048), (1000, 1002), (61, 72)])
def test_pointwise(shape, load):
    tiling = Tiling((8, 64), 5, 128, 2, 4, hs.Roles(1), load=load)
    sch = pointwise.schedule(pointwise.exp_add(*shape), tiling)
    run = tvm.compile(sch.mod, target=H200)["main"]
    a, b = (torch.randn(shape, device="cuda") for _ in range(2))
    for _ in range(10):
        got = torch.full(shape, float("nan"), device="cuda")
        run(a, b, got)
        torch.cuda.synchronize()
        torch.testing.assert_close(got, torch.exp(a) + b, rtol=1e-5, atol=1e-5)


def test_what_threads_have_to_copy():
    """Rows of 65 halves: `auto` shares them out, in and out."""
    tiling = Tiling((8, 64), 5, 64, 1, 3, load="auto", store="auto")
    sch = pointwise.schedule(pointwise.exp_add(100, 65, "float16"), tiling)
    run = tvm.compile(sch.mod, target=H200)["main"]
    a, b = (torch.randint(-3, 4, (100, 65), device="cuda").half() for _ in range(2))
    got = torch.full((100, 65), float("nan"), device="cuda").half()
    run(a, b, got)
    torch.testing.assert_close(got.float(), torch.exp(a.float()) + b.float(), rtol=4e-3, atol=4e-3)
