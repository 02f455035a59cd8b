"""One build with symbolic rows: right for every number of rows, whichever kernel it takes."""

from __future__ import annotations

import pytest

from benchmarks.matmul_case import Case, build, check
from benchmarks.symbolic import ROWS

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

AROUND = (0, 15, 16, 17, 63, 64, 65, 255, 256, 257)
CASES = [
    Case(None, 4096, 4096, "NT", "float16", "float16", sizes=(0, *ROWS)),
    Case(None, 1000, 520, "NN", "bfloat16", "bfloat16", sizes=AROUND, classes=(16, 64, 256)),
    Case(
        None, 520, 264, "NT", "float16", "float32", sizes=AROUND, classes=(16, 64, 256),
        form={"index": "int64", "batch": True, "epilogue": ("bias_col", "gelu", "residual")},
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_number_of_rows(case: Case) -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")
    check(case, build(case))
