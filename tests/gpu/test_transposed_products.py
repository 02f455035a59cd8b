"""Products of few rows, multiplied as C^T = B^T A^T, against float64 on the hardware."""

import pytest

from benchmarks.matmul_case import Case, build, check

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

TILE = {"form": "transposed", "consumers": 1}


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 4096, 4096, "NT", "float16", "float16", {"form": "tiles"}),
        Case(16, 1024, 24576, "NT", "bfloat16", "bfloat16"),
        Case(64, 5120, 1024, "TN", "float16", "float16"),
        Case(7, 1000, 520, "NN", "bfloat16", "float32", TILE | {"tile": (64, 8, 64)}),
        Case(96, 1032, 264, "TT", "float16", "float16", TILE | {"tile": (64, 56, 128)}),
        Case(
            *(33, 2056, 512, "NT", "float16", "float16"),
            {"form": "transposed", "consumers": 3, "tile": (192, 40, 64)},
            {"epilogue": ("bias_col", "relu", "residual")},
        ),
    ],
    ids=lambda case: case.name,
)
def test_few_rows(case):
    check(case, build(case)["main"])
