"""Which columns of an accumulator a statement reads, and which of them one thread holds."""

import pytest
from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.analysis.column_reads import read_columns


def reads(value, extent=128, dtype="int32"):
    """Return how a value of j, a part and a reader of columns comes by them."""
    j, part = ir.Var("j", dtype), ir.Var("part", dtype)
    acc = ir.new_buffer("acc", (512,), "float32", "local")
    loop = ir.For(j, 0, extent, ir.ForKind.SERIAL, ir.seq())
    made = value(j, part, lambda x: tirx.BufferLoad(acc, [x]))
    return read_columns(made, lambda x: x.source.same_as(acc), loop)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("index", "start", "step"),
    [
        (lambda j: j, 0, 8),
        (lambda j: j // 8 * 16 + j % 8, 0, 16),
        (lambda j: j // 8 * 16 + j % 8 + 8, 8, 16),
        (lambda j: (j + 64) // 8 * 24 + j % 8 + 16, 208, 24),
    ],
)
def test_eights(index, start, step, dtype):
    (segment,) = reads(lambda j, p, c: c(index(j)), dtype=dtype).segments
    (found,) = segment.reads.values()
    assert (segment.begin, segment.end) == (0, 128)
    assert (ir.static_int(found.start), found.step, found.pair) == (start, step, (0, 1))
    assert ir.static_int(found.first(3)) == start + 3 * step


def test_a_part_of_a_tile():
    found = reads(lambda j, p, c: c((p * 64 + j) // 8 * 16 + (p * 64 + j) % 8 + 8), 64)
    ((read,),) = [x.reads.values() for x in found.segments]
    assert (str(read.start), read.step) == ("part * 128 + 8", 16)


def rotated(j, half, c):
    return T.if_then_else(j % (2 * half) < half, -c(j + half), c(j - half))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda j, p, c: rotated(j, 64, c), [(0, 64, [64]), (64, 128, [0])]),
        (
            lambda j, p, c: c(j) + rotated(j, 32, c),
            [(0, 32, [0, 32]), (32, 64, [32, 0]), (64, 96, [64, 96]), (96, 128, [96, 64])],
        ),
        # by the index alone; and where the columns of all tiles decide, not one of this
        (lambda j, p, c: c((j + 64) % 128), [(0, 64, [64]), (64, 128, [0])]),
        (lambda j, p, c: rotated(p * 128 + j, 64, lambda x: c(x - p * 128)), None),
        (
            lambda j, p, c: T.if_then_else(p * 128 + j < 640, rotated(j, 64, c), c(j)),
            [(0, 64, [64, 0]), (64, 128, [0, 64])],
        ),
        (lambda j, p, c: tirx.Select(tirx.And(j >= 32, j != 5), c(j), 0.0),
         [(0, 32, []), (32, 128, [32])]),
    ],
)  # fmt: skip
def test_segments(value, expected):
    """Halves that are rotated: one loop has one distance."""
    found = [
        (x.begin, x.end, [ir.static_int(y.start) for y in x.reads.values()])
        for x in reads(value).segments
    ]
    assert found == (expected or [(0, 64, [64]), (64, 128, [0])])


def test_pairs():
    """A thread has both of a pair: each reads the other one."""
    (segment,) = reads(lambda j, p, c: T.if_then_else(j % 2 == 0, -c(j + 1), c(j - 1))).segments
    assert [x.pair for x in segment.reads.values()] == [(1, None), (None, 0)]
    assert [ir.static_int(x.first(2)) for x in segment.reads.values()] == [16, 16]
    (segment,) = reads(lambda j, p, c: c(j // 2 * 2 + 1 - j % 2)).segments
    assert [x.pair for x in segment.reads.values()] == [(1, 0)]


@pytest.mark.parametrize(
    ("index", "extent"),
    [
        (lambda j, p: j // 4 * 8 + j % 4, 128),  # fours
        (lambda j, p: j * 2, 128),
        (lambda j, p: 127 - j, 128),
        (lambda j, p: j + 4, 128),  # not from a multiple of eight on
        (lambda j, p: j + p, 128),
        (lambda j, p: j + p * j * 8, 128),
        (lambda j, p: j, 12),
        (lambda j, p: tirx.IntImm("int32", 0) * j, 128),
    ],
)
def test_what_another_thread_holds(index, extent):
    found = reads(lambda j, p, c: c(index(j, p)), extent)
    assert not found.segments
    assert found.stray is not None


def test_eights_of_one_group():
    (segment,) = reads(lambda j, p, c: c(j + 16), 8).segments
    assert [x.step for x in segment.reads.values()] == [8]
