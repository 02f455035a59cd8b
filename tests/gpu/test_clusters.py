"""Products whose thread blocks load for one another, on a GPU: values in every form."""

import pytest

from benchmarks.matmul_case import Case, build, check

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize("layout", ["NT", "NN", "TN", "TT"])
@pytest.mark.parametrize(
    ("tile", "cluster", "more"),
    [
        ((128, 128, 64), (2, 1), {}),
        ((192, 96, 64), (1, 2), {}),
        ((64, 128, 64), (2, 2), {"persistent": -1}),
        ((64, 64, 64), (8, 1), {"wgmma_pending": 1}),
        ((128, 64, 64), (2, 1), {"split_k": 4}),
        ((128, 128, 64), (1, 2), {"store": "tma"}),
        ((128, 64, 64), (2, 1), {"form": "transposed"}),
    ],
)
def test_values(layout, tile, cluster, more):
    """Ragged in all three extents."""
    config = {"tile": tile, "cluster": cluster, **more}
    one = Case(1000, 1048, 1544, layout, "bfloat16", "bfloat16", config)
    check(one, build(one)["main"])


def test_rows_that_are_known_at_run_time():
    config = {"tile": (128, 128, 64), "cluster": (2, 1)}
    rows = (1, 128, 129, 1000, 4096)
    one = Case(None, 1048, 1544, "NT", "float16", "float16", config, sizes=rows, classes=())
    check(one, build(one)["main"])
