"""The default configuration: the one with the least estimated time, and always one that fits."""

import time

import pytest
from tvm import s_tir, tirx
from tvm.target import Target

import tvm_hopper
from tests.schedule.devices import gpu_of_sms
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.facts.arch import SM_90A
from tvm_hopper.facts.devices import Chip
from tvm_hopper.requests.keys import BY_DEVICE
from tvm_hopper.schedule.products.config import (
    MatmulConfig,
    find_violations,
    most_stages,
    ring_slots,
    split_axis,
)
from tvm_hopper.schedule.products.model import as_product, choose_config, rank
from tvm_hopper.schedule.products.ring_and_order import choose_raster_group, num_tiles
from tvm_hopper.testing import workloads


def best(m, n, k, given=None, count=1, chip=None, majors=("k", "k")):
    wanted = as_product(m, n, k, "float16", majors, "float16")
    return rank(wanted, given or MatmulConfig(), chip or Chip(), count)


def test_a_shape_that_fills_the_chip_in_whole_waves_gets_tiles_that_do():
    """5120 x 5120 are 640 tiles of 256 x 160, 4.85 waves; of 128 x 256, 800 tiles, 6.06 waves."""
    config = choose_config(5120, 5120, 5120)
    tiles = num_tiles(5120, 5120, config.tile[:2])
    assert tiles / 132 > 0.94 * -(-tiles // 132)


def test_few_outputs_get_small_tiles():
    """Of 152 x 128 outputs a tile of 128 x 256 is one thread block; the chip has 132 SMs."""
    config = choose_config(152, 128, 33216, given=MatmulConfig(split_k=1))
    assert num_tiles(152, 128, config.tile[:2]) >= 24


@pytest.mark.parametrize("shape", [(1, 8, 8), (64, 8, 32), (16384, 16384, 32), (1, 30000, 64)])
def test_a_short_sum_gets_a_shallow_tile(shape):
    assert choose_config(*shape).tile[2] == 64


def test_no_tile_reaches_further_over_an_edge_than_it_has_to():
    for m, n, k in ((1, 8, 8), (65, 72, 64), (129, 300, 100), (200, 16, 1000)):
        tile = choose_config(m, n, k).tile
        assert tile[0] < m + 64
        assert tile[1] < max(n + 16, 17)


def test_symbolic_extents_are_taken_to_be_large():
    symbolic, large = tirx.Var("m", "int32"), MatmulConfig(persistent=BY_DEVICE, cluster=(1, 1))
    given = MatmulConfig(cluster=(1, 1))
    found = choose_config(symbolic, 4096, 4096, given=given)
    assert found == choose_config(4096, 4096, 4096, given=large)


def test_choosing_is_quick():
    best(64, 64, 64)
    start = time.process_time()
    for i in range(10):
        best(1000 + i, 1000, 1000, count=5)
    assert (time.process_time() - start) / 10 < 0.02


def test_estimates_ascend_and_every_one_fits_the_chip():
    found = best(3000, 3000, 3000, count=200)
    assert [x.microseconds for x in found] == sorted(x.microseconds for x in found)
    for one in found:
        config = MatmulConfig(consumers=one.consumers)
        assert find_violations(one.tile, one.stages, config, "float16", SM_90A) == []


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        (MatmulConfig(consumers=3), lambda x: x.consumers == 3),
        (MatmulConfig(stages=5), lambda x: most_stages(x.tile, "float16", SM_90A) >= 5),
        (MatmulConfig(consumers=2, registers=(128, 168)), lambda x: x.tile[0] * x.tile[1] <= 36352),
        (MatmulConfig(wgmma_pending=0), lambda x: x.pending == 0),
    ],
)
def test_what_is_given_restricts_the_tiles(given, holds):
    found = best(4096, 4096, 4096, given, count=1000)
    assert len(found) > 20
    assert all(map(holds, found))


def test_no_tile_for_what_is_given_is_an_error():
    with pytest.raises(ScheduleError, match=r"choose_config: found no tile that fits .*stages=99"):
        choose_config(4096, 4096, 4096, given=MatmulConfig(stages=99))


def test_a_rank_says_what_it_is():
    (first,) = best(4096, 4096, 4096, MatmulConfig(consumers=1, cluster=(1, 1)))
    (pair,) = best(4096, 4096, 4096, MatmulConfig(cluster=(2, 1)))
    assert ", clusters of 2 x 1, " in str(pair)
    text = str(first)
    assert text.startswith("x".join(map(str, first.tile)) + ", 1 consumer, ")
    assert text.endswith(f" stages: {first.microseconds:.1f} us")


def test_a_single_consumer_leaves_a_group_in_flight():
    """Nobody else multiplies while it turns from one slot to the next."""
    given = MatmulConfig(consumers=1)
    assert choose_config(512, 768, 2816, given=given).wgmma_pending == 1
    assert choose_config(512, 768, 2816, given=MatmulConfig(consumers=2)).wgmma_pending is None
    told = choose_config(512, 768, 2816, given=MatmulConfig(consumers=1, wgmma_pending=0))
    assert told.wgmma_pending == 0


def test_transposed_tiles_side_by_side_load_the_larger_operand_once():
    tile = MatmulConfig((128, 80, 128), form="transposed")
    for given in (MatmulConfig(form="transposed"), tile):
        assert choose_config(300, 4096, 4096, given=given).raster_group == 1
    assert choose_config(1000, 256, 4096, given=tile).raster_group == 2  # of A, which is larger


def test_many_rows_may_lie_on_columns_of_tiles():
    """Of 5204 rows tiles of 160 fill the chip once, one H200: 145 us where rows took 162."""
    assert choose_config(5204, 1024, 11008, "bfloat16").transposed
    rows = tirx.Var("m", "int32")
    assert not choose_config(rows, 1024, 11008, "bfloat16").transposed
    assert not choose_config(
        5204, 1024, 11008, "bfloat16", given=MatmulConfig(store="tma")
    ).transposed


def test_many_rows_stay_rows_where_the_epilogue_reads_a_whole_tensor():
    def chosen(*epilogue):
        sch = s_tir.Schedule(
            workloads.matmul(5204, 1024, 11008, out_dtype="float16", epilogue=epilogue)
        )
        hs.matmul(sch, "C")
        return "transposed" in str(tvm_hopper.explain(sch, target="nvidia/nvidia-h200"))

    assert chosen("bias_col")
    assert not chosen("residual")


@pytest.mark.parametrize(
    ("shape", "group"),
    [
        ((16384, 8192, 64), 1),  # all of B, 1 MiB, stays in the cache
        ((16384, 8192, 4096), 16),
        ((1024, 1024, 64), 8),
        ((4096, 512, 1776), 1),  # one wave: neighbours share rows of A, which is larger
        ((512, 4096, 1776), 4),
    ],
)
def test_rows_that_are_visited_together(shape, group):
    assert choose_raster_group(*shape, (128, 128), "float16", 132) == group


def test_neighbours_load_less_by_the_order_of_one_wave():
    """16 tiles of 192 x 96 in sevens: 7 x 192 + 3 x 96; side by side 2 x 192 + 13 x 96, as many."""
    assert choose_raster_group(1312, 1232, 1072, (192, 96), "float16", 132) == 7
    assert choose_raster_group(1312, 1232, 1072, (128, 128), "float16", 132) == 1
    assert choose_config(3672, 344, 1776, given=MatmulConfig(cluster=(1, 1))).raster_group == 1


@pytest.mark.parametrize(
    ("majors", "message"),
    [
        (("k", "x"), r"found majors=\('k', 'x'\); need two of"),
        ("kk", r"found majors='kk'"),
    ],
)
def test_refuses_what_are_no_majors(majors, message):
    with pytest.raises(ScheduleError, match=message):
        choose_config(64, 64, 64, majors=majors)


@pytest.mark.parametrize(
    ("shape", "stages"),
    [
        ((128, 128, 64), 2),  # one tile a block, and one step
        ((4096, 4096, 64), 7),  # the ring holds the next tiles: all slots that fit
    ],
)
def test_a_ring_has_slots_for_the_steps_of_a_block(shape, stages):
    config = choose_config(*shape)
    assert config.stages == stages
    (first,) = best(*shape)
    assert (first.tile, first.stages) == (config.tile, stages)


def test_what_is_given_stays():
    given = MatmulConfig(accumulate="float32", swizzle=64, raster=4, stages=2)
    config = choose_config(4096, 4096, 4096, given=given)
    assert (config.accumulate, config.swizzle, config.raster_group) == ("float32", 64, 4)
    assert config.stages == 2


@pytest.mark.parametrize(
    ("tile", "consumers", "stages"),
    [
        ((128, 256, 64), 2, 4),
        ((64, 256, 64), 1, 5),
        ((192, 128, 64), 3, 5),
        ((256, 128, 64), 2, 4),
        ((64, 64, 128), 1, 7),
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


def test_a_sampled_depth_stays_what_it_is():
    stages = tirx.Var("last", "int32") + 1
    config = choose_config(4096, 4096, 4096, given=MatmulConfig(stages=stages))
    assert config.stages.same_as(stages)
    assert config.num_stages is None


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
    config = choose_config(4096, 4096, 4096, given=MatmulConfig(raster=1, persistent=0))
    assert (config.raster_group, config.persistent) == (1, 0)


@pytest.mark.parametrize(
    ("num_sms", "persistent"), [(132, 0), (128, 0), (114, BY_DEVICE), (78, BY_DEVICE)]
)
def test_tiles_are_shared_where_there_are_more_than_sms(num_sms, persistent):
    given = MatmulConfig(tile=(128, 128, 64))  # 8 x 16 tiles
    with gpu_of_sms(num_sms):
        assert choose_config(1024, 2048, 512, given=given).persistent == persistent


def test_the_number_of_sms_is_that_of_the_target_in_scope():
    config = MatmulConfig(tile=(128, 128, 64))
    assert choose_config(1024, 2048, 512, given=config).persistent == 0
    for name, persistent in (("h20", BY_DEVICE), ("h100-pcie", BY_DEVICE), ("h200", 0)):
        with Target(f"nvidia/nvidia-{name}"):
            assert choose_config(1024, 2048, 512, given=config).persistent == persistent


def test_the_tile_follows_the_number_of_sms():
    """20 tiles of 64 x 32 are one wave on 20 SMs; on 5 they are four, and larger tiles win."""
    (many,), (few,) = (best(64, 640, 4096, chip=Chip(sms)) for sms in (40, 5))
    assert many.tile[1] < few.tile[1]
    assert many.microseconds < few.microseconds


def test_a_tile_has_all_columns_where_rows_begin_off_vectors():
    """Each tile of a row has two ends, which are stored element by element."""
    config = choose_config(197, 197, 64, batch=384)
    assert config.tile[1] == 200
    assert config.stages > 2
