"""The XOR patterns, against offsets computed by hand."""

import numpy as np
import pytest

from tvm_hopper.facts import swizzle


def test_128_byte_swizzle_moves_chunk_c_of_row_r_to_chunk_c_xor_r():
    # Rows of 128 B: row r, chunk c lies at 128 r + 16 c; the row is in bits 7 to 9.
    for row in range(8):
        for chunk in range(8):
            got = swizzle.swizzle_offset(128 * row + 16 * chunk + 3, 128)
            assert got == 128 * row + 16 * (chunk ^ row) + 3


def test_64_byte_swizzle_takes_two_bits_from_every_second_row():
    # Rows of 64 B: rows 0 and 1 keep their chunks, rows 2 and 3 exchange neighbours.
    assert swizzle.swizzle_offset(64 * 1 + 16, 64) == 64 * 1 + 16
    assert swizzle.swizzle_offset(64 * 2 + 0, 64) == 64 * 2 + 16
    assert swizzle.swizzle_offset(64 * 3 + 48, 64) == 64 * 3 + 32
    assert swizzle.swizzle_offset(64 * 4 + 0, 64) == 64 * 4 + 32
    assert swizzle.swizzle_offset(64 * 7 + 16, 64) == 64 * 7 + 32


def test_32_byte_swizzle_exchanges_the_halves_of_rows_4_to_7():
    assert swizzle.swizzle_offset(32 * 3 + 16, 32) == 32 * 3 + 16
    assert swizzle.swizzle_offset(32 * 4 + 0, 32) == 32 * 4 + 16
    assert swizzle.swizzle_offset(32 * 7 + 16, 32) == 32 * 7
    assert swizzle.swizzle_offset(32 * 8 + 16, 32) == 32 * 8 + 16  # the pattern starts anew


@pytest.mark.parametrize("swizzle_bytes", swizzle.SWIZZLES)
def test_swizzle_is_a_permutation_of_its_atom_and_its_own_inverse(swizzle_bytes):
    offsets = np.arange(swizzle.atom_bytes(swizzle_bytes))
    there = swizzle.swizzle_offset(offsets, swizzle_bytes)
    assert sorted(there) == list(offsets)
    assert (swizzle.swizzle_offset(there, swizzle_bytes) == offsets).all()
    if swizzle_bytes:
        assert (there != offsets).any()


def test_spans_atoms_and_alignments():
    got = [
        (swizzle.span_bytes(s), swizzle.atom_bytes(s), swizzle.alignment(s))
        for s in (0, 32, 64, 128)
    ]
    assert got == [(16, 128, 128), (32, 256, 256), (64, 512, 512), (128, 1024, 1024)]
    assert swizzle.span_elements(128, "float16") == 64
    assert swizzle.span_elements(32, "float8_e4m3fn") == 32


def test_refuses_an_unknown_pattern():
    with pytest.raises(ValueError, match="swizzle: found 96 bytes; need one of 0, 32, 64, 128"):
        swizzle.swizzle_offset(0, 96)
