"""Products of few rows as dot products, against float64 on the hardware."""

import pytest

from benchmarks.matmul_case import Case, build, check
from tvm_hopper import schedule as hs

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

NARROW = {"acc_dtype": "float16", "cast": "none"}


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 4096, 4096, "NT", "bfloat16", "bfloat16"),  # by default
        Case(1, 4096, 14336, "NT", "float16", "float16"),
        Case(1, 3001, 1000, "NT", "float16", "float32"),
        Case(1, 130, 29440, "NT", "bfloat16", "bfloat16"),
        Case(1, 64, 64, "NT", "float16", "float16"),
        Case(8, 1000, 4104, "NT", "float16", "float16", {"form": "dots"}),
        Case(3, 1001, 1000, "NT", "bfloat16", "bfloat16", {"form": hs.DotShape(64, 2, 2, 2)}),
        Case(5, 4096, 11008, "NT", "bfloat16", "bfloat16", {"form": hs.DotShape(32, 4, 4, 2)}),
        Case(1, 4096, 4096, "NT", "float16", "float16", {"accumulate": "float32"}, NARROW),
        Case(
            *(2, 2056, 512, "NT", "float16", "float16", {"form": "dots"}),
            {"epilogue": ("bias_col", "silu", "residual")},
        ),
        Case(None, 4096, 4096, "NT", "float16", "float16", sizes=(0, 1, 2, 8, 9, 100)),
    ],
    ids=lambda case: case.name,
)
def test_dot_products(case):
    check(case, build(case)["main"])
