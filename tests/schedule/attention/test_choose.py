"""The tile of an attention kernel: what registers and shared memory hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_hopper import schedule as hs
from tvm_hopper.facts import registers
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.schedule.attention.choose import AttentionShape, choose_attention, rank_attention


def chosen(shape, **given):
    return choose_attention(AttentionShape(*shape, "float16"), hs.AttentionConfig(**given))


@pytest.mark.parametrize("columns", [None, 128, 256])
def test_each_head_dimension_has_a_tile_that_fits(columns):
    for d in range(32, 257, 8):
        shape = AttentionShape(4096, 4096, d, columns or d, "float16")
        config = choose_attention(shape, hs.AttentionConfig())
        rows, keys = config.tile
        assert (rows, keys % 16) == (64 * config.consumers, 0)
        own = None if config.registers is None else config.registers[1]
        held = shape.held(keys)
        assert registers.accumulator_budget(held, config.consumers, SM_90A, own, True).fits
        assert shape.shared_bytes(config.tile, config.stages) <= SM_90A.tile_bytes


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((512, 512, 128, 128), (128, 128)),  # steps that are all full
        ((8192, 8192, 128, 128), (128, 176)),  # wide ones
        ((4096, 70, 64, 64), (192, 80)),
        ((8192, 8192, 64, 64), (192, 112)),  # more rows for the same keys
        ((8192, 8192, 96, 96), (128, 192)),
        ((None, None, 64, 64), (192, 112)),
        ((8192, 8192, 256, 256), (128, 80)),
    ],
)
def test_the_tile_of_least_time(shape, tile):
    assert chosen(shape).tile == tile


def test_masks_want_narrow_steps():
    masked = AttentionShape(1024, 1024, 96, 96, "float16", True)
    assert choose_attention(masked, hs.AttentionConfig()).tile == (128, 128)


def test_windows_are_seen_in_few_narrow_steps():
    """Rows of a tile see 256 keys: four steps of 64, or three of 128."""
    shape = AttentionShape(1024, 1024, 64, 64, "float16", heads=96, band=(-64, 65))
    assert choose_attention(shape, hs.AttentionConfig()).tile == (128, 64)


def test_what_scores_are_computed_with_takes_registers():
    plain = AttentionShape(4096, 4096, 128, 128, "float16")
    computed = replace(plain, is_computed=True)
    tiles = [choose_attention(x, hs.AttentionConfig()).tile for x in (plain, computed)]
    assert tiles == [(128, 176), (128, 144)]


def test_configurations_are_ranked_and_listed():
    shape = AttentionShape(2048, 2048, 128, 128, "bfloat16", True, 64, band=(None, 1))
    ranked = rank_attention(shape, hs.AttentionConfig())
    times = [x.microseconds for x in ranked]
    assert times == sorted(times)
    text = "128x128, 2 consumers, 2 stages, tiles in turn: "
    assert str(ranked[0]).startswith(text)
    assert str(ranked[0]).endswith(" us")
    unknown = replace(shape, rows=None)
    assert " us" not in str(rank_attention(unknown, hs.AttentionConfig())[0])


@pytest.mark.parametrize(
    ("rows", "heads", "is_masked", "blocks"),
    [
        (2048, 8, False, 0),  # 128 tiles: one for each SM
        (2048, 64, False, -1),
        (2048, 64, True, -1),
        (1024, 40, True, 0),  # 160 pairs of 8: the last 28 would run alone
        (None, None, True, -1),
    ],
)
def test_thread_blocks_share_tiles_where_there_are_several_for_each(rows, heads, is_masked, blocks):
    shape = AttentionShape(rows, rows, 128, 128, "float16", is_masked, heads)
    assert choose_attention(shape, hs.AttentionConfig()).persistent == blocks


def test_consumers_are_as_many_as_rows():
    assert chosen((64, 512, 64, 64)).consumers == 1
    assert chosen((65, 512, 64, 64)).consumers == 2
    assert [chosen((512, 512, 64, 64), tile=(x, 32)).consumers for x in (64, 128, 192, 256)] == [
        *(1, 2, 3, 2)
    ]


def test_one_slot_overlaps_nothing():
    assert [chosen((512, 512, 64, 64), stages=x).overlap for x in (1, 2, 3)] == [False, True, True]
