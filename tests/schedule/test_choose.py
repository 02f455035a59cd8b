"""The default configuration: large tiles for large shapes, and always one that fits."""

import pytest

from tvm_hopper.schedule.choose import CANDIDATES, choose_config, estimate_cycles
from tvm_hopper.schedule.config import (
    MatmulConfig,
    find_violations,
    most_stages,
    split_axis,
    stage_bytes,
)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((4096, 4096, 4096), (128, 256, 64)),
        ((8192, 8192, 8192), (128, 256, 64)),
        (("m", 4096, 4096), (128, 256, 64)),
        ((64, 4096, 8192), (64, 32, 64)),  # 128 tiles for 132 SMs
        ((1, 8, 8), (64, 32, 64)),
    ],
)
def test_tiles(shape, tile):
    assert choose_config(*shape).tile == tile


def test_large_shapes_get_the_ring_that_the_measured_kernel_has():
    config = choose_config(4096, 4096, 4096)
    assert (config.stages, config.consumers) == (4, 2)


def test_a_short_reduction_gets_a_short_ring():
    assert choose_config(4096, 4096, 64).stages == 2


@pytest.mark.parametrize(("tile_m", "tile_n", "consumers"), CANDIDATES)
def test_every_candidate_fits_the_chip(tile_m, tile_n, consumers):
    config = choose_config(128, 128, 128)
    config = type(config)((tile_m, tile_n, 64), stages=3, consumers=consumers)
    assert find_violations(config.tile, 3, config, "float16") == []


def test_what_is_given_stays():
    given = MatmulConfig(accumulate="float32", swizzle=64, raster_group=4, stages=2)
    config = choose_config(4096, 4096, 4096, given=given)
    assert (config.accumulate, config.swizzle, config.raster_group) == ("float32", 64, 4)
    assert (config.tile, config.stages, config.consumers) == ((128, 256, 64), 2, 2)


@pytest.mark.parametrize(
    ("tile", "consumers", "stages"),
    [
        ((128, 256, 64), 2, 4),
        ((64, 256, 64), 1, 5),
        ((192, 128, 64), 3, 5),
        ((256, 128, 64), 2, 4),
        ((64, 64, 128), 1, 6),
    ],
)
def test_a_given_tile_gets_consumers_and_stages(tile, consumers, stages):
    config = choose_config(4096, 4096, 4096, given=MatmulConfig(tile))
    assert (config.consumers, config.stages) == (consumers, stages)


def test_given_consumers_get_a_tile_that_they_can_share():
    for consumers in (1, 2, 3):
        config = choose_config(4096, 4096, 4096, given=MatmulConfig(consumers=consumers))
        assert config.consumers == consumers
        assert find_violations(config.tile, config.stages, config, "float16") == []


def test_a_sampled_last_stage_stays_what_it_is():
    config = choose_config(4096, 4096, 4096, given=MatmulConfig(last_stage=2))
    assert (config.stages, config.last_stage) == (None, 2)


def test_cycles_by_hand():
    # one tile of 64x64, one step: 64*64*64/2048 = 128 multiply, 2*128*64/48 = 341 load,
    # 1500 fill, 2*64*64/24 = 341 store
    assert estimate_cycles(64, 64, 64, 64, 64) == 341 + 1500 + 341
    assert estimate_cycles(64 * 133, 64, 64, 64, 64) == 2 * (341 + 1500 + 341)


def test_bytes_of_a_stage_by_hand():
    assert stage_bytes((128, 256, 64), "float16") == (16384, 32768)
    assert stage_bytes((64, 24, 16), "bfloat16") == (2048, 1024)  # 768 bytes take a whole kibibyte
    assert most_stages((128, 256, 64), "float16") == 4
    assert most_stages((64, 64, 64), "float16") == 14


@pytest.mark.parametrize(
    ("tile", "consumers", "axis"),
    [
        ((128, 256), 2, "m"),
        ((192, 128), 3, "m"),
        ((192, 128), 2, "n"),
        ((64, 64), 2, "n"),
        ((64, 24), 3, "n"),
        ((128, 128), 3, ""),
        ((96, 96), 2, ""),
    ],
)
def test_axis_that_consumers_share(tile, consumers, axis):
    assert split_axis(*tile, consumers) == axis
