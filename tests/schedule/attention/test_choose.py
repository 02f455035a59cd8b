"""The tile of an attention kernel: what registers and shared memory hold."""

from __future__ import annotations

import pytest

from tvm_hopper import schedule as hs
from tvm_hopper.facts import registers
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.schedule.attention.choose import AttentionShape, choose_attention


def chosen(shape, **given):
    return choose_attention(AttentionShape(*shape, "float16"), hs.AttentionConfig(**given))


@pytest.mark.parametrize("columns", [None, 128, 256])
def test_each_head_dimension_has_a_tile_that_fits(columns):
    for d in range(32, 257, 8):
        shape = AttentionShape(4096, 4096, d, columns or d, "float16")
        config = choose_attention(shape, hs.AttentionConfig())
        rows, keys = config.tile
        assert (rows, keys % 16) == (64 * config.consumers, 0)
        held = shape.held(keys)
        assert registers.accumulator_budget(held, config.consumers, SM_90A, None, True).fits
        assert shape.shared_bytes(config.tile, config.stages) <= SM_90A.tile_bytes


def test_steps_are_as_wide_as_keys_and_masks_allow():
    assert chosen((4096, 4096, 64, 64)).tile == (128, 176)
    assert chosen((4096, 70, 64, 64)).tile == (128, 80)
    assert chosen((None, None, 64, 64)).tile == (128, 176)
    masked = AttentionShape(4096, 4096, 64, 64, "float16", True)
    assert choose_attention(masked, hs.AttentionConfig()).tile == (128, 128)


def test_consumers_are_as_many_as_rows():
    assert chosen((64, 512, 64, 64)).consumers == 1
    assert chosen((65, 512, 64, 64)).consumers == 2
    assert [chosen((512, 512, 64, 64), tile=(x, 32)).consumers for x in (64, 128, 192, 256)] == [
        *(1, 2, 3, 2)
    ]


def test_one_slot_overlaps_nothing():
    assert [chosen((512, 512, 64, 64), stages=x).overlap for x in (1, 2, 3)] == [False, True, True]
