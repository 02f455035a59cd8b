"""Which eights of an accumulator's columns an index takes."""

import pytest
from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.analysis.column_reads import column_read


def read(index, extent=128, dtype="int32"):
    j, part = ir.Var("j", dtype), ir.Var("part", dtype)
    loop = ir.For(j, 0, extent, ir.ForKind.SERIAL, ir.seq())
    return column_read(index(j, part), loop)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("index", "starts", "step"),
    [
        (lambda j, p: j, (0,), 8),
        (lambda j, p: j // 8 * 16 + j % 8, (0,), 16),
        (lambda j, p: j // 8 * 16 + j % 8 + 8, (8,), 16),
        (lambda j, p: (j + 64) // 8 * 24 + j % 8 + 16, (208,), 24),
    ],
)
def test_eights(index, starts, step, dtype):
    found = read(index, dtype=dtype)
    assert (ir.static_int(found.start), found.step) == (*starts, step)
    assert ir.static_int(found.first(3)) == starts[0] + 3 * step


def test_a_part_of_a_tile():
    found = read(lambda j, p: (p * 64 + j) // 8 * 16 + (p * 64 + j) % 8 + 8, 64)
    assert found.step == 16
    assert str(found.start) == "part * 128 + 8"


@pytest.mark.parametrize(
    ("index", "extent"),
    [
        (lambda j, p: j // 4 * 8 + j % 4, 128),  # fours
        (lambda j, p: j * 2, 128),
        (lambda j, p: 127 - j, 128),
        (lambda j, p: j + 4, 128),  # not from a multiple of eight on
        (lambda j, p: j + p, 128),
        (lambda j, p: j, 12),
        (lambda j, p: tirx.IntImm("int32", 0) * j, 128),
    ],
)
def test_what_is_none(index, extent):
    assert read(index, extent) is None


def test_eights_of_one_group():
    assert read(lambda j, p: j + 16, 8).step == 8
