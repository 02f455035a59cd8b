"""WGMMA's shapes, fragments and descriptors, against figures worked out by hand."""

import itertools

import numpy as np
import pytest

from tvm_hopper.facts import wgmma
from tvm_hopper.facts.wgmma import Descriptor, operand_addresses, operand_layout


def test_every_instruction_takes_32_bytes_of_k():
    got = [wgmma.instruction_k(t) for t in ("float16", "bfloat16", "float32", "float8_e5m2")]
    assert got == [16, 16, 8, 32]


def test_instruction_k_refuses_a_type_without_wgmma():
    with pytest.raises(ValueError, match="WGMMA operand: found type float64; need one of float8"):
        wgmma.instruction_k("float64")


def test_legal_n():
    assert len(wgmma.legal_n("float16")) == 32
    assert wgmma.legal_n("float16")[:3] == (8, 16, 24)
    assert 40 not in wgmma.legal_n("int8")  # beyond 32 in steps of 16
    assert wgmma.legal_n("int8")[:6] == (8, 16, 24, 32, 48, 64)
    assert wgmma.emitted_n("float16") == wgmma.legal_n("float16")
    assert max(wgmma.emitted_n("uint8")) == 224


def test_instruction_name():
    got = wgmma.instruction_name(256, "float16", "float32")
    assert got == "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16"
    got = wgmma.instruction_name(48, "int8", "int32")
    assert got == "wgmma.mma_async.sync.aligned.m64n48k32.s32.s8.s8"


def test_instruction_name_refuses():
    with pytest.raises(ValueError, match="WGMMA n for float16: found 12; need one of"):
        wgmma.instruction_name(12, "float16")
    with pytest.raises(ValueError, match="accumulator for bfloat16: found float16; need float32"):
        wgmma.instruction_name(64, "bfloat16", "float16")


def test_accumulator_of_single_threads():
    # Figure "WGMMA .m64nNk16 register fragment layout for D": thread 0 has rows 0 and 8.
    where = lambda i, t: (wgmma.accumulator_row(i, t), wgmma.accumulator_col(i, t))  # noqa: E731
    assert [where(i, 0) for i in range(6)] == [(0, 0), (0, 1), (8, 0), (8, 1), (0, 8), (0, 9)]
    assert where(0, 5) == (1, 2)
    assert where(3, 127) == (63, 7)
    assert where(127, 32) == (24, 249)


def test_accumulator_covers_the_tile_once():
    i, thread = np.meshgrid(np.arange(wgmma.accumulator_registers(24)), np.arange(128))
    cells = wgmma.accumulator_row(i, thread) * 24 + wgmma.accumulator_col(i, thread)
    assert sorted(cells.ravel()) == list(range(64 * 24))


def test_descriptor_bits():
    # 0x12340 >> 4 = 0x1234; 16 >> 4 = 1; 1024 >> 4 = 0x40; 128 B is code 1 in bits 62-63.
    made = Descriptor(start=0x12340, leading_bytes=16, stride_bytes=1024, swizzle_bytes=128)
    assert made.encode() == 0x4000_0040_0001_1234
    assert Descriptor(0, 16, 256, 0, 32).encode() == 3 << 62 | 0x10 << 32 | 1 << 16
    assert Descriptor(0, 0, 0, 5, 64).encode() == 2 << 62 | 5 << 49


def test_descriptor_decode_inverts_encode():
    for swizzle, base in itertools.product((0, 32, 64, 128), (0, 3)):
        made = Descriptor(0x3FFF0, 4096, 8192, base, swizzle)
        assert Descriptor.decode(made.encode()) == made


def test_descriptor_refuses():
    with pytest.raises(ValueError, match="descriptor start: found 8; need a multiple of 16"):
        Descriptor(8, 16, 16)
    with pytest.raises(ValueError, match="descriptor stride_bytes: found 262144"):
        Descriptor(0, 16, 1 << 18)
    with pytest.raises(ValueError, match="descriptor base_offset: found 8; need 0 to 7"):
        Descriptor(0, 16, 16, 8)
    with pytest.raises(ValueError, match="swizzle: found 8 bytes"):
        Descriptor(0, 16, 16, 0, 8)


@pytest.mark.parametrize(
    ("major", "rows", "k", "swizzle", "leading", "stride", "k_step", "shape"),
    [
        # K-major: eight rows of the span are one stride; a step of k is 32 bytes inside the row.
        ("k", 128, 64, 128, 16, 1024, 32, (1, 128, 64)),
        ("k", 64, 64, 64, 16, 512, 32, (2, 64, 32)),
        ("k", 64, 64, 32, 16, 256, 32, (4, 64, 16)),
        # Without a swizzle rows are 16 B, a core matrix 128 B, and k chunks one panel apart.
        ("k", 64, 64, 0, 1024, 128, 2048, (8, 64, 8)),
        # MN-major: eight k rows are one stride, panels of mn the leading distance.
        ("mn", 256, 64, 128, 8192, 1024, 2048, (4, 64, 64)),
        ("mn", 64, 32, 64, 2048, 512, 1024, (2, 32, 32)),
        ("mn", 64, 64, 32, 2048, 256, 512, (4, 64, 16)),
        # Without a swizzle the two change places.
        ("mn", 64, 64, 0, 128, 1024, 256, (8, 64, 8)),
    ],
)
def test_operand_layout(major, rows, k, swizzle, leading, stride, k_step, shape):
    made = operand_layout(major, rows, k, "float16", swizzle)
    assert (made.leading_bytes, made.stride_bytes) == (leading, stride)
    assert made.k_step_bytes == k_step
    assert made.shape == shape
    assert made.tile_bytes == rows * k * 2
    assert made.tile_bytes % made.alignment == 0


def test_k_offset_crosses_panels():
    made = operand_layout("k", 64, 128, "float16", 128)
    # Four steps of 32 B in a row of 128 B, then the next panel of 64 x 128 B.
    assert [made.k_offset(s) for s in range(8)] == [0, 32, 64, 96, 8192, 8224, 8256, 8288]
    made = operand_layout("k", 64, 64, "float16", 32)
    assert [made.k_offset(s) for s in range(4)] == [0, 2048, 4096, 6144]
    made = operand_layout("mn", 128, 64, "float16", 128)
    assert [made.k_offset(s) for s in range(4)] == [0, 2048, 4096, 6144]


def test_mn_offset():
    assert operand_layout("k", 128, 64, "float16", 128).mn_offset(64) == 8192
    assert operand_layout("mn", 128, 64, "float16", 128).mn_offset(64) == 8192
    assert operand_layout("mn", 128, 32, "float16", 64).mn_offset(64) == 2 * 32 * 64
    with pytest.raises(ValueError, match="MN-major operand with a 128 B swizzle: found an instr"):
        operand_layout("mn", 128, 64, "float16", 128).mn_offset(32)


CASES = [
    (major, swizzle, dtype)
    for major, swizzle, dtype in itertools.product(
        wgmma.MAJORS, (0, 32, 64, 128), ("float16", "bfloat16", "float8_e4m3fn", "float32")
    )
    if major == "k" or dtype in wgmma.MN_MAJOR_DTYPES
]


@pytest.mark.parametrize(("major", "swizzle", "dtype"), CASES)
def test_an_instruction_reads_what_tma_wrote(major, swizzle, dtype):
    """The two sides are written down separately: TMA's panels, WGMMA's canonical layouts."""
    rows, k, start = 128, 128, 3 * 1024
    made = operand_layout(major, rows, k, dtype, swizzle)
    step = wgmma.instruction_k(dtype)
    for row, index in itertools.product(range(0, rows, 64), range(k // step)):
        got = operand_addresses(made.descriptor(start, row, index), major, 64, dtype)
        row_of = np.arange(row, row + 64)[:, None]
        k_of = np.arange(index * step, (index + 1) * step)[None, :]
        assert (got == start + made.element_offset(row_of, k_of)).all()


def test_operand_addresses_of_single_elements():
    # K-major, 128 B: row 9, k 10 -> 1024 + 128 + 20, and row 1 of the atom flips chunk 1 to 0.
    got = operand_addresses(Descriptor(0, 16, 1024, 0, 128), "k", 64, "float16")
    assert got[9, 10] == 1024 + 128 + 4
    # MN-major, 128 B, panels 8192 apart: m 70, k 9 -> panel 1, stride 1, row 1, chunk 0 -> 1.
    got = operand_addresses(Descriptor(0, 8192, 1024, 0, 128), "mn", 128, "float16")
    assert got[70, 9] == 8192 + 1024 + 128 + 12 + 16
    # No swizzle, K-major: row 9, k 9 -> stride 128, row 1 of 16 B, second chunk, element 1.
    got = operand_addresses(Descriptor(0, 1024, 128, 0, 0), "k", 64, "float16")
    assert got[9, 9] == 128 + 16 + 1024 + 2
    # No swizzle, MN-major: m 9, k 9 -> SBO 1024, LBO 128, k row 1, element 1.
    got = operand_addresses(Descriptor(0, 128, 1024, 0, 0), "mn", 64, "float16")
    assert got[9, 9] == 1024 + 128 + 16 + 2


def test_operand_addresses_refuses_a_shifted_pattern():
    with pytest.raises(ValueError, match="descriptor base_offset: found 2; need 0 here"):
        operand_addresses(Descriptor(0, 16, 1024, 2), "k", 64, "float16")


def test_operand_layout_refuses():
    with pytest.raises(ValueError, match="operand major: found 'm'; need 'k' or 'mn'"):
        operand_layout("m", 64, 64, "float16")
    with pytest.raises(
        ValueError, match="MN-major operand: found type float8_e4m3fn; need float16"
    ):
        operand_layout("mn", 64, 64, "float8_e4m3fn")
    with pytest.raises(ValueError, match="found 60x64; need multiples of 8 and 16"):
        operand_layout("k", 60, 64, "float16")
    with pytest.raises(ValueError, match="found k = 32; need a multiple of 64"):
        operand_layout("k", 64, 32, "float16", 128)
    with pytest.raises(ValueError, match="found rows = 96; need a multiple of 64"):
        operand_layout("mn", 96, 64, "float16", 128)
