"""The simulator's own decoders, against what the passes compute: two ways to the same bytes."""

import itertools

import numpy as np
import pytest

from tvm_hopper.facts import swizzle as pass_swizzle, wgmma as pass_wgmma
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.sim.launch.tma import landed_bytes, landing_offsets
from tvm_hopper.sim.layouts import fragments as ops
from tvm_hopper.sim.layouts.matrix_descriptor import CANONICAL, DRAWINGS, MatrixDescriptor, swizzled

SPANS = (0, 32, 64, 128)
OPERANDS = [row.name for row in DTYPES.values() if row.wgmma_operand]
EXISTING = [
    (dtype, major, span)
    for dtype in OPERANDS
    for major in ("k", "mn")
    for span in SPANS
    if major == "k" or DTYPES[dtype].mn_major
]


def test_every_combination_that_exists_is_here():
    assert set(OPERANDS) == {"float16", "bfloat16", "float32", "int8", "uint8",
                             "float8_e4m3fn", "float8_e5m2"}  # fmt: skip
    assert len(EXISTING) == 7 * 4 + 2 * 4
    assert set(CANONICAL) == {(major, span) for _, major, span in EXISTING}
    assert set(DRAWINGS) == set(pass_swizzle.SWIZZLES)


# -- swizzles ------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", SPANS)
def test_the_drawing_and_the_exclusive_or_agree(span):
    addresses = np.arange(8192)
    assert np.array_equal(swizzled(addresses, span), pass_swizzle.swizzle_offset(addresses, span))


@pytest.mark.parametrize("span", SPANS)
def test_a_drawing_moves_each_piece_inside_its_own_line(span):
    for line in DRAWINGS[span]:
        width = max(span, 16) // 16
        groups = [line[i : i + width] for i in range(0, 8, width)]
        assert ["".join(sorted(g)) for g in groups] == [
            "01234567"[i : i + width] for i in range(0, 8, width)
        ]


def test_single_places_by_hand():
    # 128 B, second line: piece 0 lies where piece 1 would; 64 B, line 2, piece 5: two to the right
    assert swizzled(np.array([128]), 128)[0] == 128 + 16
    assert swizzled(np.array([2 * 128 + 5 * 16 + 3]), 64)[0] == 2 * 128 + 7 * 16 + 3
    assert swizzled(np.array([2 * 128 + 16]), 32)[0] == 2 * 128 + 16  # 32 B: two lines, then anew
    # a repetition that begins at line 3: line 3 is plain, line 4 like the second of the drawing
    assert swizzled(np.array([3 * 128, 4 * 128]), 128, 3).tolist() == [3 * 128, 4 * 128 + 16]


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("phase", range(0, 1024, 128))
def test_a_box_lands_where_the_passes_look_for_it(span, itemsize, phase):
    row = (span or 128) // itemsize
    got = landing_offsets(row, 2048 // itemsize // row, itemsize, span, phase)
    plain = np.arange(0, 2048, itemsize) + phase
    want = (pass_swizzle.swizzle_offset(plain, span) - phase) // itemsize
    assert np.array_equal(got, want)


# -- descriptors -----------------------------------------------------------------------------------


def tiles(major, dtype, span):
    """List (rows, k) of operand tiles: one panel, several, one and several instructions."""
    step = pass_wgmma.instruction_k(dtype)
    width = pass_swizzle.span_elements(span, dtype)
    if major == "k":
        return [
            (rows, k) for rows in (8, 64, 256) for k in {max(width, step), 4 * max(width, step)}
        ]
    return [(rows, k) for rows in {max(64, width), 256} for k in (step, 4 * step)]


@pytest.mark.parametrize(("dtype", "major", "span"), EXISTING)
def test_what_a_descriptor_reads_is_what_was_stored(dtype, major, span):
    """Every instruction of a tile: each step along k, each part of its rows, three places."""
    step, size = pass_wgmma.instruction_k(dtype), DTYPES[dtype].num_bytes
    for rows, k in tiles(major, dtype, span):
        layout = pass_wgmma.operand_layout(major, rows, k, dtype, span)
        part = max(layout.mn_granularity, 8)
        for start, s in itertools.product((0, 1024, 7 * 4096), range(k // step)):
            for first in range(0, rows, max(part, rows // 4)):
                count = min(part, rows - first)
                word = layout.descriptor(start, first, s).encode()
                got = MatrixDescriptor.of(word).addresses(major, count, step, size)
                row, column = np.meshgrid(
                    np.arange(first, first + count), np.arange(s * step, (s + 1) * step),
                    indexing="ij",
                )  # fmt: skip
                assert np.array_equal(got, start + layout.element_offset(row, column))
            word = layout.descriptor(start, 0, s).encode()
            got = MatrixDescriptor.of(word).addresses(major, rows, step, size)
            assert len(np.unique(got)) == rows * step


@pytest.mark.parametrize(("dtype", "major", "span"), EXISTING)
def test_any_strides_and_starts_mean_the_same(dtype, major, span):
    """Fields that no tile of ours has: rows apart, panels apart, starts inside of a repetition."""
    size, depth = DTYPES[dtype].num_bytes, pass_wgmma.instruction_k(dtype)
    rng = np.random.default_rng(span + len(dtype))
    for rows in (8, 64, 256):
        for _ in range(20):
            start, leading, stride = (int(x) * 16 for x in rng.integers(0, 1 << 10, 3))
            told = pass_wgmma.Descriptor(start, leading, stride, 0, span)
            got = MatrixDescriptor.of(told.encode()).addresses(major, rows, depth, size)
            assert np.array_equal(got, pass_wgmma.operand_addresses(told, major, rows, dtype))


def test_bits_of_a_descriptor_by_hand():
    # 0x1234 << 4, LBO 1 << 4, SBO 0x40 << 4, base offset 5, mode 2 (64 B); reserved bits are set
    word = 2 << 62 | 0x1FF << 52 | 5 << 49 | 0x7 << 46 | 0x40 << 32 | 3 << 30 | 1 << 16 | 3 << 14
    assert MatrixDescriptor.of(word | 0x1234) == MatrixDescriptor(0x12340, 16, 1024, 5, 64)
    assert [MatrixDescriptor.of(mode << 62).span for mode in range(4)] == [0, 128, 64, 32]


def test_canonical_layouts_by_hand():
    """Single elements of float16, worked out from the figures of PTX ISA 9.7.15.5.1.2."""
    at = lambda d, major, row, k: int(d.addresses(major, 64, 16, 2)[row, k])  # noqa: E731
    plain = MatrixDescriptor(0, 0x1000, 0x2000, 0, 0)
    assert at(plain, "k", 9, 11) == 0x2000 + 16 + 0x1000 + 3 * 2  # second group, row 1, second half
    assert at(plain, "mn", 17, 9) == 2 * 0x2000 + 1 * 2 + 0x1000 + 16
    wide = MatrixDescriptor(0, 0x1000, 0x2000, 0, 128)
    assert at(wide, "k", 9, 11) == 0x2000 + 128 + (1 ^ 1) * 16 + 3 * 2
    assert at(wide, "mn", 9, 9) == 0x2000 + 128 + (1 ^ 1) * 16 + 1 * 2
    narrow = MatrixDescriptor(0, 0x1000, 0x2000, 0, 32)
    assert at(narrow, "mn", 17, 0) == 0x1000 + 2  # 16 elements a row, then the next panel


def test_leading_bytes_are_not_looked_at_under_a_swizzle_along_k():
    one, other = (MatrixDescriptor(0, leading, 1024, 0, 128) for leading in (16, 4096))
    assert np.array_equal(one.addresses("k", 64, 16, 2), other.addresses("k", 64, 16, 2))


# -- fragments ------------------------------------------------------------------------------------


def test_the_accumulator_lies_where_the_passes_read_it():
    for n in (8, 24, 256):
        count = pass_wgmma.accumulator_registers(n)
        register, lane = np.meshgrid(np.arange(count), np.arange(32))
        full, held = np.arange(64 * n).reshape(64, n), np.empty((32, count), np.int64)
        for warp in range(4):
            ops.lanes_of_rows(held)[...] = ops.rows_of(full, warp)
            row, column = np.divmod(held, n)
            thread = warp * 32 + lane
            assert np.array_equal(row, pass_wgmma.accumulator_row(register, thread))
            assert np.array_equal(column, pass_wgmma.accumulator_col(register, thread))


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_a_in_registers_covers_its_rows_once(itemsize):
    """PTX ISA, figures of 9.7.15.5.1.1: row by lane / 4, four lanes along k, words row by row."""
    row, k = ops.a_fragment_index(itemsize)
    assert sorted(zip(row.ravel(), k.ravel(), strict=True)) == list(
        itertools.product(range(16), range(32 // itemsize))
    )
    per = 4 // itemsize
    assert (row[5, 0], k[5, 0]) == (1, per)  # lane 5: second row, second word along k
    assert (row[0, per], k[0, per]) == (8, 0)  # second register: eight rows below
    assert (row[0, 2 * per], k[0, 2 * per]) == (0, 16 // itemsize)  # third: the other half of k


def test_rows_shorter_than_the_span_lie_one_span_apart():
    # as an H200 has them (docs/calibration.md), in 16-byte pieces of shared memory
    got = landing_offsets(4, 8, 4, 64, 0).reshape(8, 4)
    assert np.array_equal(got - got[:, :1], np.tile(np.arange(4), (8, 1)))
    assert (got[:, 0] // 4).tolist() == [0, 4, 9, 13, 18, 22, 27, 31]
    assert (landing_offsets(32, 5, 1, 128, 0).reshape(5, 32)[:, ::16] // 16).tolist() == [
        [0, 1],
        [9, 8],
        [18, 19],
        [27, 26],
        [36, 37],
    ]


@pytest.mark.parametrize(("itemsize", "start"), [(1, 0), (2, 256), (4, 1024)])
def test_the_bytes_of_a_box_leave_out_its_gaps(itemsize, start):
    row = 16 // itemsize
    whole, unit, end = landed_bytes(start, landing_offsets(row, 4, itemsize, 0, 0), itemsize)
    assert (whole, unit, end) == (slice(start, start + 64), 1, start + 64)
    landing = landing_offsets(row, 4, itemsize, 32, 0)
    places, unit, end = landed_bytes(start, landing, itemsize)
    assert unit == itemsize
    assert len(places) == 4 * row
    assert end == start + 3 * 32 + 16
