"""The default configuration: large tiles for large shapes, and always one that fits."""

import pytest
from tvm import tirx
from tvm.target import Target

from tvm_hopper.errors import ScheduleError
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.requests.keys import BY_DEVICE
from tvm_hopper.schedule.products.config import (
    MatmulConfig,
    find_violations,
    most_stages,
    ring_slots,
    split_axis,
)
from tvm_hopper.schedule.products.model import (
    CANDIDATES,
    choose_config,
    choose_tile,
    estimate_cycles,
)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [  # the fastest of nine tiles on an H200, or within 2% of it
        ((2048, 2048, 2048), (128, 256, 64)),
        ((1024, 1024, 1024), (128, 64, 128)),
        ((512, 4096, 14336), (128, 128, 64)),
        ((128, 8192, 8192), (128, 64, 128)),
        ((64, 4096, 8192), (64, 64, 128)),
        ((4096, 4096, 256), (128, 256, 64)),
    ],
)
def test_measured_shapes_get_the_tile_that_was_fastest(shape, tile):
    assert choose_config(*shape).tile == tile


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((4096, 4096, 4096), (128, 256, 64)),
        ((8192, 8192, 8192), (128, 256, 64)),
        ((tirx.Var("m", "int32"), 4096, 4096), (128, 256, 64)),
        ((1, 8, 8), (64, 32, 64)),  # no deeper than the sum needs
    ],
)
def test_other_shapes(shape, tile):
    assert choose_config(*shape).tile == tile


def test_large_shapes_get_the_ring_that_the_measured_kernel_has():
    config = choose_config(4096, 4096, 4096)
    assert (config.stages, config.consumers) == (4, 2)


def test_a_short_reduction_gets_a_short_ring():
    assert choose_config(4096, 4096, 64).stages == 2


@pytest.mark.parametrize("candidate", CANDIDATES, ids=str)
def test_every_candidate_fits_the_chip(candidate):
    *tile, consumers = candidate
    config = MatmulConfig(tuple(tile), stages=3, consumers=consumers)
    assert find_violations(config.tile, 3, config, "float16", SM_90A) == []


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
        assert find_violations(config.tile, config.stages, config, "float16", SM_90A) == []


def test_a_sampled_last_stage_stays_what_it_is():
    config = choose_config(4096, 4096, 4096, given=MatmulConfig(last_stage=2))
    assert (config.stages, config.last_stage) == (None, 2)


def test_cycles_by_hand():
    # one tile of 64x64x64: 128 multiply + 170 turn, more than 16384 / 5800 = 2 loads;
    # 1500 fill, 2*64*64/16 = 512 store
    assert estimate_cycles(64, 64, 64, (64, 64, 64)) == 298 + 1500 + 512
    # 133 tiles are two waves; 132 CTAs load 132 * 16384 / 5800 = 372 a step
    assert estimate_cycles(64 * 133, 64, 64, (64, 64, 64)) == 2 * (372 + 1500 + 512)
    # on 78 SMs as well; 78 CTAs load 78 * 16384 / 5800 = 220 a step, less than 298 of multiplying
    assert estimate_cycles(64 * 133, 64, 64, (64, 64, 64), 78) == 2 * (298 + 1500 + 512)
    # one row of a large B: 2 * 16385 * 8192 bytes at 1900 a cycle
    assert estimate_cycles(1, 16384, 8192, (64, 128, 64)) == 2 * 16385 * 8192 // 1900


def slot_bytes(tile, dtype):
    return tuple(slot.num_bytes for slot in ring_slots(tile, dtype))


def test_bytes_of_a_stage_by_hand():
    assert slot_bytes((128, 256, 64), "float16") == (16384, 32768)
    assert slot_bytes((64, 24, 16), "bfloat16") == (2048, 768)
    assert most_stages((128, 256, 64), "float16", SM_90A) == 4
    assert most_stages((64, 64, 64), "float16", SM_90A) == 14


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


def test_order_of_tiles_is_chosen_from_the_shape():
    config = choose_config(4096, 4096, 4096)
    assert (config.raster_group, config.persistent) == (16, BY_DEVICE)
    small = choose_config(64, 4096, 4096)
    assert (small.raster_group, small.persistent) == (1, 0)
    symbolic = choose_config(tirx.Var("m", "int32"), 4096, 4096)
    assert symbolic.persistent == BY_DEVICE


def test_a_given_order_of_tiles_stays():
    config = choose_config(4096, 4096, 4096, given=MatmulConfig(raster_group=1, persistent=0))
    assert (config.raster_group, config.persistent) == (1, 0)


@pytest.mark.parametrize(
    ("num_sms", "persistent"), [(132, 0), (128, 0), (114, BY_DEVICE), (78, BY_DEVICE)]
)
def test_tiles_are_shared_where_there_are_more_than_sms(num_sms, persistent):
    given = MatmulConfig(tile=(128, 128, 64))  # 8 x 16 tiles
    config = choose_config(1024, 2048, 512, given=given, num_sms=num_sms)
    assert config.persistent == persistent


def test_the_number_of_sms_is_that_of_the_target_in_scope():
    config = MatmulConfig(tile=(128, 128, 64))
    assert choose_config(1024, 2048, 512, given=config).persistent == 0
    for name, persistent in (("h20", BY_DEVICE), ("h100-pcie", BY_DEVICE), ("h200", 0)):
        with Target(f"nvidia/nvidia-{name}"):
            assert choose_config(1024, 2048, 512, given=config).persistent == persistent
            told = choose_config(1024, 2048, 512, given=config, num_sms=200)
            assert told.persistent == 0


def test_the_tile_follows_the_number_of_sms():
    """20 tiles of 64 x 32 are one wave on 20 SMs; on 5 they are four, and larger tiles win."""
    many, few = (choose_tile(64, 640, 4096, num_sms=sms)[0] for sms in (20, 5))
    cost = {
        sms: {t: estimate_cycles(64, 640, 4096, t, sms) for t in (many, few)} for sms in (20, 5)
    }
    assert many != few
    assert cost[20][many] < cost[20][few]
    assert cost[5][few] < cost[5][many]


@pytest.mark.parametrize(
    ("num_sms", "message"),
    [
        (0, r"choose_config: found num_sms=0; need 1 or more"),
        (1.5, r"choose_config: found num_sms=1.5; need an int or None"),
    ],
)
def test_refuses_what_is_no_number_of_sms(num_sms, message):
    with pytest.raises(ScheduleError, match=message):
        choose_config(64, 64, 64, num_sms=num_sms)
