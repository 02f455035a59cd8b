"""Tiles with a halo, and tiles that are read along columns: rows and slots that are padded."""

import pytest

from tvm_hopper import explain, schedule as hs
from tvm_hopper.simulation import verify
from tvm_hopper.testing import neighbors, pointwise
from tvm_hopper.testing.pointwise import Tiling

H200 = "nvidia/nvidia-h200"
SLOW = pytest.mark.slow


def check(mod, tiling, **extents) -> None:
    """Verify a schedule, and its values against the plain program."""
    sch = pointwise.schedule(mod, tiling)
    report = verify(sch, **extents).require_clean()
    assert "values compared" in str(report)


@pytest.mark.parametrize(
    ("shape", "tiling"),
    [
        ((30, 126), Tiling((8, 64), steps=2, threads=64, vector=4, stages=2)),
        pytest.param((30, 126), Tiling((8, 64), 3, 128, 1, 3, hs.Roles(1)), marks=SLOW),
        pytest.param((33, 250), Tiling((4, 128), 4, 128, 2, None), marks=SLOW),
        pytest.param((9, 22), Tiling((3, 20), 2, 32, 1, 2), marks=SLOW),
    ],
)
def test_a_stencil(shape, tiling):
    check(neighbors.five_point(*shape), tiling)


@pytest.mark.parametrize("swizzle", [128, pytest.param(None, marks=SLOW)])
def test_a_transpose(swizzle):
    tiling = Tiling((32, 32), 2, 64, 1, 2, swizzle=swizzle)
    check(neighbors.transpose(72, 100), tiling)


def test_rows_and_slots_are_padded():
    """Rows of 130 floats become 132, 10 rows become 16: 8448 bytes, a multiple of 128."""
    sch = pointwise.schedule(neighbors.five_point(30, 254), Tiling((8, 128), 2, 128, 1, 2))
    (kernel,) = explain(sch.mod, H200).kernels
    (tile,) = (x for x in kernel.smem if x.name.startswith("A"))
    assert tile.size == 2 * 16 * 132 * 4
    text = str(explain(sch.mod, H200))
    assert "box 132 x 10 of 256 x 32 elements, 5280 bytes" in text
