"""A register tile as the first operand of a product, and rows next to accumulators of any width."""

import numpy as np
import pytest

from tests.transforms.refusals.products import ACCUMULATOR, PRODUCT
from tests.transforms.refusals.tile_operands import TILE_OPERAND
from tests.transforms.scripts import nest, parse, run
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.facts import wgmma
from tvm_hopper.sim.layouts.fragments import a_fragment_index
from tvm_hopper.transforms import LowerWgmma
from tvm_hopper.transforms.wgmma.fragment_layout import AccumulatorLayout
from tvm_hopper.transforms.wgmma.operands.register_operand import words_of

# Registers 4 g + 2 h and + 1 are row 16 warp + 8 h + lane // 4, of an accumulator and of words.
WEIGHTS = """
with T.sblock("weights"):
    T.reads(w[0:8], acc[0:8])
    T.writes(w[0:8])
    with T.sblock("weights"):
        T.reads(w[0:8], acc[0:8])
        T.writes(w[0:8])
        for g in T.serial(2, unroll=2):
            for h in T.serial(2, unroll=2):
                w[g * 4 + h * 2] = T.Cast("float16", acc[g * 4 + h * 2])
                w[g * 4 + h * 2 + 1] = T.Cast("float16", acc[g * 4 + h * 2 + 1])
    w_words = w.view("uint32")
    for i in T.serial(4, unroll=4):
        T.tirx.tvm_hopper_hold_uint32(w_words[i])
"""
INSTRUCTION = "T.ptx.wgmma(other[0], other[1], other[2], other[3], {0}[0], {0}[1], {0}[2], {0}[3], "


def lowered(*changes):
    return run(parse(PRODUCT, *TILE_OPERAND, *changes), LowerWgmma()).script()


def lines(text):
    return [line.strip() for line in text.strip().splitlines()]


def test_what_a_sum_leaves_in_registers_is_multiplied_from_there():
    """The words are held where they are computed: no later than that may the compiler do it."""
    text = lowered()
    weights = text[
        text.index('with T.sblock("weights")') : text.index("for p, r, s in T.grid(1, 8")
    ]
    assert lines(weights) == lines(WEIGHTS)
    second = nest(text, '"second"')
    assert "T.reads(w[0:8], other[0:4])" in second
    assert INSTRUCTION.format("w_words") in second
    assert "shuffle" not in text


@pytest.mark.parametrize(("m", "n"), [(64, 16), (64, 48), (128, 32)])
def test_an_operand_lies_where_an_accumulator_does(m, n):
    """Of two neighbours in a word: the simulator's own operand is the judge."""
    rows, columns = a_fragment_index(2)  # of lanes and elements of a warp's 16 x 16
    layout, threads = AccumulatorLayout(m, n, n), np.arange(128)[:, None]
    registers = ir.new_buffer("w", (layout.count,), "float16", "local")
    _, at = words_of(registers, n)
    lanes = np.tile(np.arange(32), 4)
    for subtile in range(m // 64):
        for step in range(n // 16):
            words = [ir.static_int(x.indices[0]) for x in at(subtile * 64, step)]
            held = np.array([2 * word + e for word in words for e in range(2)])
            own = held - layout.register(subtile, 0, 0)
            assert np.array_equal(
                wgmma.accumulator_row(own, threads), rows[lanes] + threads // 32 * 16
            )
            assert np.array_equal(wgmma.accumulator_col(own, threads), columns[lanes] + step * 16)


SCALED = """                for i, j in T.grid(64, {n}):
                    with T.sblock("scale_{x}", reads=[], writes=[]):
                        {x}[i, j] = {x}[i, j] * row[{i}]
"""


def scaled(row="i"):
    """Scale both sums by values of their rows, between and after the products."""
    declared = ACCUMULATOR.replace("acc", "row").replace("(64, 8)", "(64,)")
    fill = """                for i in range(64):
                    with T.sblock("rows", reads=[], writes=[]):
                        row[i] = T.float32(2)
"""
    both = fill + SCALED.format(n=16, x="acc", i="i") + SCALED.format(n=8, x="other", i=row)
    return ("                c = T.s", declared + "                c = T.s"), (
        "                for p, r, s in T.grid(1, 8, 16):",
        both + "                for p, r, s in T.grid(1, 8, 16):",
    )


def test_values_of_rows_meet_accumulators_of_several_widths():
    """Two registers of a thread are its rows of all of them."""
    text = lowered(*scaled())
    assert "row = T.sblock_alloc_buffer((2,)" in text
    for x, groups in (("acc", 2), ("other", 1)):
        found = nest(text, f'"scale_{x}"')
        place = "g * 4 + h * 2" if groups > 1 else "h * 2"
        assert f"{x}[{place} + 1] = {x}[{place} + 1] * row[h % 2]" in found


def test_another_row_of_a_second_accumulator_is_refused():
    with pytest.raises(LoweringError, match=r"found an access of other\[i, j\] of 64x8 next to "):
        lowered(*scaled(row="63 - i"))
