"""LowerWgmma with an operand that threads compute into registers."""

import numpy as np
import pytest

from tests.transforms.refusals.products import IN_REGISTERS, PRODUCT
from tests.transforms.scripts import nest, notes_of, parse, run
from tvm_hopper.facts import wgmma
from tvm_hopper.sim.layouts.fragments import a_fragment_index
from tvm_hopper.transforms import LowerWgmma
from tvm_hopper.transforms.common.explain_notes import RemarkNote

# Word 2 c + h of a thread: row 16 warp + 8 h + lane // 4, two neighbours from 8 c + 2 (lane % 4).
ROWS = "S_rows[h] = S[tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4]"
CONVERT = """
with T.sblock("convert"):
    T.reads(S_rows[0:2])
    T.writes(f[0:8])
    f_words = f.view("uint32")
    for word in T.serial(4, unroll=4):
        with T.sblock("pair"):
            T.reads()
            T.writes()
            a_pair = T.sblock_alloc_buffer((2,), "int8", scope="local")
            half = T.sblock_alloc_buffer((1,), "float16", scope="local")
            for e in T.vectorized(2):
                a_pair[e] = a[0, tx % 128 // 32 * 16 + word % 2 * 8 + tx % 32 // 4, word // 2 * 8 + tx % 4 * 2 + e]
            a_pair_bytes = a_pair.view("uint16")
            half[0] = S_rows[word % 2]
            half_bits = half.view("uint16")
            f_words[word] = T.tvm_hopper_mul_f16x2(T.tvm_hopper_widen_bytes_int8_float16(a_pair_bytes[0], T.uint32(0), T.uint32(0)), T.tvm_hopper_both_halves(half_bits[0]))
    for i in T.serial(4, unroll=4):
        T.tirx.tvm_hopper_hold_uint32(f_words[i])
"""  # noqa: E501
PLAIN = """
            f[word * 2] = T.Cast("float16", a_pair[0]) * S_rows[word % 2]
            f[word * 2 + 1] = T.Cast("float16", a_pair[1]) * S_rows[word % 2]
"""


def lowered(*changes):
    """Return the text of the script, the operand in registers."""
    func = run(parse(PRODUCT, *IN_REGISTERS, *changes), LowerWgmma())
    return func.script().replace("threadIdx_x", "tx")


def test_each_thread_converts_what_its_registers_hold():
    text = lowered()
    lines = [line.strip() for line in nest(text, '"convert"').splitlines()]
    assert lines == [line.strip() for line in CONVERT.strip().splitlines()]
    assert text.index(ROWS) < text.index("for p in range(4)"), "no step changes them"
    product = nest(text, '"update"')
    assert "T.reads(f[0:8], acc[0:4])" in product
    assert "T.ptx.wgmma(acc[0], acc[1], acc[2], acc[3], f_words[0], f_words[1]" in product


def test_explain_says_so():
    notes = notes_of(run(parse(PRODUCT, *IN_REGISTERS), LowerWgmma()))
    assert RemarkNote("operand f is computed by threads, into the registers of WGMMA") in notes


def test_what_has_no_short_conversion_is_cast():
    text = lowered(('"int8"', '"int16"'))
    assert all(line.strip() in text for line in PLAIN.strip().splitlines())
    assert "widen_bytes" not in text


def test_what_a_step_changes_is_loaded_in_it():
    text = lowered(("* S[i]", "* S[i + p]"))
    loop, load, convert = (text.index(x) for x in ("for p in range(4)", "] = S[", '"convert"'))
    assert loop < load < convert, "on its way while the step waits for its tiles"


def field(shift, mask=15, word="a[0, i, k // 8]"):
    """Return the text of some bits of a word, as a number."""
    return f'T.Cast("float16", {word} >> T.Cast("uint32", {shift}) & T.uint32({mask}))'


NIBBLE = 'T.tvm_hopper_nibbles_float16(a[0, i, word // 2], T.Cast("uint32", tx % 4), T.uint32({}))'


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (field("k % 8 * 4"), NIBBLE.format(0)),
        (field("k % 8 * 4") + " - T.float16(7)", NIBBLE.format(7)),
        # a zero point too large to be subtracted along
        (field("k % 8 * 4") + " - T.float16(100)", "T.tvm_hopper_sub_f16x2(T.tvm_hopper_nibbles"),
        (field("k % 4 * 8", 255, "a[0, i, k // 4]"), "T.tvm_hopper_widen_bytes_uint8_float16("),
        (field("k % 16 * 2", 3, "a[0, i, 0]"), "T.tvm_hopper_small_float16("),
        # neighbours in different words
        (field("4", 15, "a[0, i, k]"), "T.tvm_hopper_small_float16("),
        # a number that a bfloat16 does not hold
        (field("k % 2 * 16", 4095, "a[0, i, k // 2]"), "f[word * 2] = T.Cast("),
        # bits beyond the word
        (field("k * 4"), "f[word * 2] = T.Cast("),
        # a type that does not hold the field
        (f'T.Cast("float16", T.Cast("int8", {field("k % 8 * 4", 255)[17:]})', "f[word * 2] = T."),
    ],
)
def test_fields_of_a_word_become_halves_in_pairs(value, found):
    text = lowered(('"int8"', '"uint32"'), ('T.Cast("float16", a[0, i, k]) * S[i]', value))
    row = "tx % 128 // 32 * 16 + word % 2 * 8 + tx % 32 // 4"
    assert found.replace("i,", f"{row},") in text


PAD = "T.if_then_else({}, {} * S[i], T.float16(0))"


@pytest.mark.parametrize(
    ("bound", "load", "mask"),
    [
        (
            "i < 60",
            "S_rows[h] = T.if_then_else(tx % 128 // 32 * 16 + h * 8 + tx % 32 // 4 < 60, S[",
            0,
        ),
        # neighbours on both sides of the end
        ("k < 13", "half[0] = T.if_then_else(", 1),
    ],
)
def test_a_pad_reads_nothing_beyond_its_end(bound, load, mask):
    value = PAD.format(bound, field("k % 8 * 4"))
    text = lowered(('"int8"', '"uint32"'), ('T.Cast("float16", a[0, i, k]) * S[i]', value))
    (line,) = (x.strip() for x in text.splitlines() if "nibbles" in x)
    assert line.startswith("f_words[word] = T.if_then_else(")
    assert (" | T.Select(" in line) == bool(mask)
    assert load in text


def test_a_choice_guards_what_is_in_it_alone():
    value = f"T.if_then_else(i < 60, {field('k % 8 * 4')} * S[i], T.float16(0)) + S[i]"
    text = lowered(('"int8"', '"uint32"'), ('T.Cast("float16", a[0, i, k]) * S[i]', value))
    assert "S_rows[h] = S[" in text, "the program reads it everywhere"
    assert "half[0] = S_rows[" in text
    word = next(x.strip() for x in text.splitlines() if "nibbles" in x)
    assert word.startswith("f_words[word] = T.tvm_hopper_add_f16x2(T.if_then_else(")
    assert word.endswith("T.tvm_hopper_both_halves(half_bits_1[0]))")


def test_what_the_kernel_writes_is_loaded_in_it():
    text = lowered(
        ('C: T.Buffer((64, 8), "float32")', 'C: T.Buffer((64, 8), "float16")'),
        ("* S[i]", "* C[i, 0]"),
        ("C[i, j] = acc[i, j]", 'C[i, j] = T.Cast("float16", acc[i, j])'),
    )
    assert "C_rows" not in text


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_words_lie_where_the_hardware_reads_them(itemsize):
    row, k = a_fragment_index(itemsize)
    per_word = 4 // itemsize
    thread = np.arange(128)[:, None]
    word = np.arange(wgmma.OPERAND_WORDS)[None, :]
    found = wgmma.operand_row(word, thread), wgmma.operand_col(word, thread, per_word)
    for warp in range(4):
        own = slice(32 * warp, 32 * warp + 32)
        assert np.array_equal(found[0][own], row[:, ::per_word] + 16 * warp)
        assert np.array_equal(found[1][own], k[:, ::per_word])
