"""The formula of the estimate, term by term, against sums by hand."""

from dataclasses import fields, replace

import numpy as np
import pytest

from tvm_hopper.facts.devices import Chip
from tvm_hopper.schedule import MatmulConfig
from tvm_hopper.schedule.products.candidates import Candidates, candidates, instruction_columns
from tvm_hopper.schedule.products.config import ARCH, find_violations, most_stages
from tvm_hopper.schedule.products.estimate import KernelForm, estimate
from tvm_hopper.schedule.products.product_shape import ProductShape
from tvm_hopper.schedule.products.rate_constants import Rates

# Every term but those that a test puts in: exponents so high that the norm is the largest term.
NORMS = {"handover_share_pending": 1.0, "step_exponent": 200.0, "time_exponent": 200.0}
NAMES = [x.name for x in fields(Rates)]
PLAIN = Rates(**{name: 1e9 if "_bytes" in name else 0.0 for name in NAMES} | NORMS)
USUAL = KernelForm()
ONE_MEGAHERTZ = Chip(megahertz=1.0)  # a cycle is a microsecond


def tiles(
    rows=128, columns=128, depth=64, consumers=2, stages=4, pending=0, parts=1, cluster=(1, 1)
):
    by_rows = rows % (64 * consumers) == 0
    width = instruction_columns(columns if by_rows else columns // consumers, consumers, "float16")
    fields = (rows, columns, depth, consumers, by_rows, width, stages, pending, parts, *cluster)
    return Candidates(*(np.array([int(x)]) for x in fields))


def cycles(shape, tile, chip=ONE_MEGAHERTZ, form=USUAL, **rates):
    (found,) = estimate(shape, tile, chip, replace(PLAIN, **rates), form)
    return pytest.approx(found, rel=0.02)


SQUARE = ProductShape(128, 128, 640)  # ten steps of one tile of 128 x 128


def test_products_take_the_rate_of_the_tensor_cores():
    """128 x 128 x 64 multiply-adds at 2048 a cycle are 512, ten times."""
    assert cycles(SQUARE, tiles()) == 5120
    assert cycles(SQUARE, tiles(), replace(ONE_MEGAHERTZ, tensor_rate=0.25)) == 4 * 5120


def test_operands_are_read_for_every_instruction():
    """(64 + 128) rows of 32 bytes at 24 a cycle are 256, for 2 x 4 instructions, ten times."""
    assert cycles(SQUARE, tiles(), operand_bytes=24.0) == 256 * 8 * 10


def test_a_consumer_turns_while_another_one_multiplies():
    """One consumer alone: 512 + 300 a step. Of two, one has 256 + 300, which both take."""
    assert cycles(SQUARE, tiles(consumers=1), slot_handover_cycles=300.0) == 8120
    assert cycles(SQUARE, tiles(), slot_handover_cycles=300.0) == 5560
    in_flight = {"slot_handover_cycles": 300.0, "handover_share_pending": 0.5}
    assert cycles(SQUARE, tiles(consumers=1, pending=1), **in_flight) == 6620


def test_many_accumulators_slow_instructions_down():
    """256 x 192 over two consumers are 192 a thread, 32 beyond 160."""
    wide = ProductShape(256, 192, 640)
    plain = 256 * 192 * 640 // 2048
    assert cycles(wide, tiles(256, 192), register_pressure_cost=0.1) == 1.1 * plain
    assert cycles(wide, tiles(256, 192, consumers=3), register_pressure_cost=0.1) == plain


def test_slots_are_filled_and_rows_off_a_sector_and_off_a_line_cost_more():
    """256 rows of 128 bytes at 16 a cycle are 2048; rows begin at odd multiples of 16 and 32."""
    assert cycles(SQUARE, tiles(), fill_bytes=16.0) == 20480
    off = ProductShape(128, 128, 648)
    both = {"off_sector": 0.5, "off_line": 0.25}
    assert cycles(off, tiles(), fill_bytes=16.0, **both) == 11 * 2048 * 1.5
    at_sectors = ProductShape(128, 128, 656)
    assert cycles(at_sectors, tiles(), fill_bytes=16.0, **both) == 11 * 2048 * 1.25
    assert cycles(SQUARE, tiles(), fill_bytes=16.0, **both) == 20480


@pytest.mark.parametrize(("columns", "factor"), [(128, 1), (96, 2), (80, 4), (72, 8)])
def test_rows_along_n_that_no_wide_swizzle_divides_cost_more(columns, factor):
    shape = ProductShape(128, columns, 640, majors=("k", "mn"))
    rows = 128 + columns * (1 + 0.5 * (factor - 1))
    found = cycles(shape, tiles(128, columns), fill_bytes=8.0, narrow_swizzle_cost=0.5)
    assert found == rows * 128 / 8 * 10


def test_loads_under_way_cover_the_latency():
    assert cycles(SQUARE, tiles(stages=4), latency_cycles=6000.0) == 20000
    assert cycles(SQUARE, tiles(stages=2), latency_cycles=6000.0) == 60000


def test_all_thread_blocks_load_through_one_cache():
    """Twelve tiles of 256 rows of 128 bytes at 64 a cycle."""
    shape = ProductShape(12 * 128, 128, 640)
    assert cycles(shape, tiles(), l2_bytes=64.0) == 12 * 256 * 128 / 64 * 10


def test_rows_outside_of_a_tensor_cost_every_thread_block():
    """Of 64 rows 60 are outside, for each of 100 thread blocks, ten times: where rows run along m.

    Others have a box of their own, unless blocks load for one another, or have several tiles.
    """
    columns, rows = ProductShape(4, 12800, 640, majors=("mn", "k")), ProductShape(4, 12800, 640)
    tile, rates = tiles(64, 128, consumers=1), {"out_of_bounds_row_cycles": 0.5}
    assert cycles(columns, tile, **rates) == 0.5 * 60 * 100 * 10
    assert cycles(rows, tile, **rates) == cycles(rows, tile).expected
    assert cycles(rows, tile, form=KernelForm(spare=False), **rates) == 0.5 * 60 * 100 * 10
    pair = tiles(64, 128, consumers=1, cluster=(1, 2))
    assert cycles(rows, pair, **rates) == 0.5 * 60 * 100 * 10
    few = replace(ONE_MEGAHERTZ, num_sms=50)
    assert cycles(rows, tile, few, **rates) == 0.5 * 60 * 100 * 10


def test_waves_and_epilogues():
    """133 tiles are two waves on 132 SMs: each 5120 and 128 x 128 x 2 bytes at 16 a cycle."""
    shape = ProductShape(128 * 133, 128, 640)
    assert cycles(shape, tiles(), wide_store_bytes=16.0) == 2 * (5120 + 2048)
    assert (
        cycles(shape, tiles(), replace(ONE_MEGAHERTZ, num_sms=133), wide_store_bytes=16.0) == 7168
    )
    hidden = {"wide_store_bytes": 16.0, "epilogue_overlap": 0.5}
    assert cycles(shape, tiles(), **hidden) == 2 * (5120 + 2048) - 1024
    assert cycles(shape, tiles(), start_cycles=1000.0) == 1000 + 2 * 5120


def test_narrow_stores_hide_behind_nothing():
    shape = ProductShape(128 * 133, 128, 640, output_bytes=4)
    found = cycles(shape, tiles(), pair_store_bytes=32.0, epilogue_overlap=0.5)
    assert found == 2 * (5120 + 2048)
    turned = replace(shape, is_transposed=True)  # eight threads fill a sector, not four by halves
    assert cycles(turned, tiles(), narrow_store_bytes=16.0) == 2 * (5120 + 2048)


def test_stores_of_16_bytes_a_thread_take_columns_by_32():
    """For three consumers 224 columns are two instructions of 112: as shifted runs, 3.5 of 4."""
    assert instruction_columns(224, 3, "float16") == 112
    shape, tile = ProductShape(192, 208, 64), tiles(192, 208, consumers=3)
    rates = {"narrow_store_bytes": 2.0, "wide_store_bytes": 4.0}
    multiplied = 192 * 208 * 64 / 2048
    earlier = KernelForm(shifted=False)
    assert cycles(shape, tile, form=earlier, **rates) == 192 * 208 + multiplied
    assert cycles(shape, tile, **rates) == 192 * 224 / 2 + multiplied


def test_boxes_leave_at_a_rate_of_their_own_where_rows_begin_at_sectors():
    form = KernelForm(boxes=np.array([True]))
    rates = {"wide_store_bytes": 16.0, "box_store_bytes": 32.0}
    assert cycles(SQUARE, tiles(), form=form, **rates) == 5120 + 1024
    off = replace(SQUARE, n=120)
    assert cycles(off, tiles(), form=form, **rates) == 5120 + 2048


def test_one_multiplies_while_the_other_stores():
    """Of 133 tiles a block has two: both are multiplied, or half of that and both stores, then one.

    Consumers of their own tiles pay neither for a third one nor for further tiles.
    """
    shape, form = ProductShape(128 * 133, 128, 640), KernelForm(turns=2)
    alone = tiles(consumers=1)
    for rate, store in ((16.0, 2048), (4.0, 8192)):
        in_turn = 2 * max(5120, (5120 + store) / 2)
        assert cycles(shape, alone, form=form, wide_store_bytes=rate) == in_turn + store
    more = {"wide_store_bytes": 16.0, "single_consumer_tile_cycles": 700.0}
    assert cycles(shape, alone, form=form, **more) == 2 * 5120 + 2048
    assert cycles(shape, alone, **more) == 2 * (5120 + 2048) + 700


def test_consumers_that_share_columns_all_read_the_rows():
    shape, tile = ProductShape(64, 128, 640), tiles(rows=64)
    assert cycles(shape, tile, shared_columns_cost=0.5) == 1.5 * 2560


def test_memory_and_rows_off_a_sector():
    shape = ProductShape(1024, 1000, 64)  # a row of 2000 bytes is no multiple of 32
    moved = 2 * (1024 + 1000) * 64
    found = cycles(shape, tiles(), memory_bytes=1.0, partial_sector_cost=0.5)
    assert found == moved + 1024 * 1000 * 2 * 1.5
    half = replace(ONE_MEGAHERTZ, memory_rate=0.5)
    assert cycles(SQUARE, tiles(), half, memory_bytes=1.0) == 2 * (4 * 128 * 640 + 2 * 128 * 128)


def test_power_bounds_all_that_is_multiplied():
    work = 128 * 128 * 640 / 1e9
    assert cycles(SQUARE, tiles(), flop_power=1e9) == 1e9 * work
    weak = replace(ONE_MEGAHERTZ, power_rate=0.5)
    assert cycles(SQUARE, tiles(), weak, flop_power=1e9) == 2e9 * work


def test_what_tma_stores_touches_less_of_sectors():
    shape, rates = ProductShape(1024, 1000, 64), {"memory_bytes": 1.0, "partial_sector_cost": 0.5}
    rates |= {"tma_store_partial_sector_share": 0.4}
    moved = 2 * (1024 + 1000) * 64 + 1024 * 1000 * 2 * 1.2
    assert cycles(shape, tiles(), form=KernelForm(boxes=True), **rates) == moved


def test_what_stands_around_the_loop_hides_behind_no_memory():
    moved = 2 * (4 * 128 * 640 + 2 * 128 * 128) // 2
    found = cycles(SQUARE, tiles(), memory_bytes=1.0, start_cycles=1e6, wide_store_bytes=0.5)
    assert found == moved + 1e6 + 128 * 128 * 2 / 0.5


def test_a_norm_is_near_its_largest_term():
    """A step multiplies for 512 cycles, of which a consumer 256, and fills a slot in 512."""
    close = {"fill_bytes": 64.0, "step_exponent": 2.0}
    assert cycles(SQUARE, tiles(), **close) == 10 * (512**2 + 256**2 + 512**2) ** 0.5


def test_every_candidate_is_legal():
    found = candidates("bfloat16", MatmulConfig())
    assert len(found) > 200
    for i in range(len(found)):
        config = MatmulConfig(consumers=int(found.consumers[i]))
        tile, stages = found.tile(i), int(found.stages[i])
        assert find_violations(tile, stages, config, "bfloat16", ARCH) == []
        assert stages == min(8, most_stages(tile, "bfloat16", ARCH))


def test_blocks_that_share_a_sum_take_its_steps_in_turn():
    """Ten steps in four parts are three of 512 cycles."""
    assert cycles(SQUARE, tiles(parts=4)) == 3 * 512
    assert cycles(SQUARE, tiles(parts=10)) == 512


def test_clusters_that_do_not_fit_take_another_turn():
    """The chip holds 66 clusters of two, and 15 of eight."""
    wide = ProductShape(66 * 128, 128, 640)
    assert cycles(wide, tiles(parts=2)) == 5 * 512
    assert cycles(replace(wide, m=67 * 128), tiles(parts=2)) == 2 * 5 * 512
    assert cycles(replace(wide, m=16 * 128), tiles(parts=8)) == 2 * 2 * 512
    half = replace(ONE_MEGAHERTZ, num_sms=66)
    assert cycles(replace(wide, m=8 * 128), tiles(parts=8), half) == 2 * 2 * 512


def test_blocks_of_a_cluster_have_no_loads_in_common():
    """Four blocks load 256 rows of 128 bytes each at 64 a cycle, by the root of four."""
    assert cycles(SQUARE, tiles(parts=4), l2_bytes=64.0) == 4 * 256 * 128 / 64 * 3
    assert (
        cycles(SQUARE, tiles(parts=4), l2_bytes=64.0, split_k_l2_exponent=0.5)
        == 8 * 256 * 128 / 64 * 3
    )


def test_blocks_of_a_cluster_meet_and_read_one_anothers_sums():
    """128 x 128 x 4 bytes at 16 a cycle are 4096; a whole tile has nothing to exchange."""
    costs = {"cluster_sum_cycles": 1000.0, "cluster_peer_cycles": 10.0, "exchange_bytes": 16.0}
    assert cycles(SQUARE, tiles(parts=4), **costs) == 3 * 512 + 1000 + 4 * 10 + 4096
    assert cycles(SQUARE, tiles(), **costs) == 5120


def test_each_block_of_a_cluster_stores_its_part_of_the_tile():
    """128 x 128 x 2 bytes at 2 a cycle, by four."""
    assert cycles(SQUARE, tiles(parts=4), wide_store_bytes=2.0) == 3 * 512 + 4096


def test_a_third_consumer_costs_a_share():
    three = tiles(rows=192, consumers=3)
    assert cycles(SQUARE, three, third_consumer_cost=0.5) == 1.5 * cycles(SQUARE, three).expected
    assert cycles(SQUARE, tiles(), third_consumer_cost=0.5) == cycles(SQUARE, tiles()).expected


def test_edges_that_cut_tiles_cost_a_share():
    even, cut = cycles(SQUARE, tiles()), cycles(SQUARE, tiles(), edge_tile_cost=0.5)
    assert cut == even  # no edge of it cuts a tile
    ragged = replace(SQUARE, m=SQUARE.m - 1)
    assert cycles(ragged, tiles(), edge_tile_cost=0.5) == 1.5 * cycles(ragged, tiles()).expected


PAIR = {"cluster": (2, 1)}


def test_what_blocks_load_together_goes_through_the_cache_once():
    """Two tiles of 128 x 128 in a column: 256 rows of A, and 128 of B for both."""
    two = ProductShape(256, 128, 640)
    alone, together = (cycles(two, tiles(**x), l2_bytes=1.0) for x in ({}, PAIR))
    assert alone == 10 * 2 * 256 * 128
    assert together == 10 * (256 + 128) * 128
    beside = ProductShape(128, 256, 640)
    assert cycles(beside, tiles(cluster=(1, 2)), l2_bytes=1.0) == 10 * (256 + 128) * 128


def test_rows_off_a_line_cost_less_where_they_are_loaded_together():
    odd = ProductShape(256, 128, 640 - 8)
    alone, together = (cycles(odd, tiles(**x), fill_bytes=1.0, off_sector=0.5) for x in ({}, PAIR))
    assert alone == 10 * 1.5 * 256 * 128
    assert together == 10 * (1.5 * 128 + 1.25 * 128) * 128


def test_blocks_that_load_together_take_longer_to_launch():
    two = ProductShape(256, 128, 640)
    plain = cycles(two, tiles(**PAIR)).expected
    assert cycles(two, tiles(**PAIR), multicast_cycles=1e4) == plain + 1e4
    assert cycles(two, tiles(), multicast_cycles=1e4) == plain


def test_launches_together_cost_another_number_where_rows_begin_off_sectors():
    costs = {"multicast_cycles": 700.0, "multicast_off_sector_cycles": 300.0}
    for depth, cost in ((640, 700), (648, 300)):  # 1296 bytes begin halfway between two sectors
        shape = replace(SQUARE, k=depth)
        alone = cycles(shape, tiles(), **costs)
        assert cycles(shape, tiles(cluster=(2, 1)), **costs).expected == alone.expected + cost


def test_first_loads_of_rows_off_a_sector_take_longer():
    """Both operands' begin off sectors: of a pair one half of what A adds is left."""
    shape, costs = replace(SQUARE, k=648), {"start_cycles": 9000.0, "start_off_sector_cost": 0.1}
    bare = cycles(shape, tiles(), off_sector=1.0).expected
    assert cycles(shape, tiles(), off_sector=1.0, **costs) == bare + 9000 * 1.2
    pair = tiles(cluster=(1, 2))
    assert cycles(shape, pair, off_sector=1.0, **costs) == bare + 9000 * 1.15


def test_transposed_tiles_of_many_columns_store_vectors():
    """128 x 128 x 2 bytes at 32 a cycle, not at 8; where rows are of 16 bytes, and all of a sum."""
    stores = {"transposed_store_bytes": 32.0, "narrow_store_bytes": 8.0, "element_store_bytes": 2.0}
    shape = replace(SQUARE, is_transposed=True)
    loop = cycles(shape, tiles()).expected
    assert cycles(shape, tiles(), **stores) == loop + 128 * 128 * 2 / 32
    few = tiles(columns=32)
    less = cycles(replace(shape, n=32), few).expected
    assert cycles(replace(shape, n=32), few, **stores) == less + 128 * 32 * 2 / 8
    assert cycles(replace(shape, m=shape.m - 4), tiles(), **stores) == loop + 128 * 128 * 2 / 2
    before = cycles(shape, tiles(), form=KernelForm(turned=False), **stores)
    assert before == loop + 128 * 128 * 2 / 8


def test_rows_off_vectors_are_shifted_where_a_tile_has_a_run_for_four_threads():
    stores = {"shifted_store_bytes": 16.0, "element_store_bytes": 2.0}
    shape = replace(SQUARE, n=SQUARE.n - 1)
    loop = cycles(shape, tiles()).expected
    assert cycles(shape, tiles(), **stores) == loop + 128 * 128 * 2 / 16
    few = tiles(columns=24)
    less = cycles(replace(shape, n=23), few).expected
    assert cycles(replace(shape, n=23), few, **stores) == less + 128 * 24 * 2 / 2


def test_stores_of_many_rows_transposed_have_a_rate_of_their_own():
    stores = {"transposed_store_bytes": 32.0, "transposed_store_bytes_many_rows": 64.0}
    few, many = (ProductShape(128, n, 64, is_transposed=True) for n in (1024, 1152))
    for shape, rate in ((few, 32), (many, 64)):
        loop = cycles(shape, tiles(), transposed_store_bytes_many_rows=1e9).expected
        assert cycles(shape, tiles(), **stores) == loop + 128 * 128 * 2 / rate
    assert of_any_rows(many, tiles(), **stores) == loop + 128 * 128 * 2 / 32


def test_a_cluster_with_blocks_without_work_takes_as_long():
    """Three tiles in clusters of two are two clusters."""
    one = replace(ONE_MEGAHERTZ, num_sms=2)
    three = ProductShape(384, 128, 640)
    assert cycles(three, tiles(**PAIR), one) == cycles(
        ProductShape(512, 128, 640), tiles(**PAIR), one
    )


def of_any_rows(shape, tile, **rates):
    return cycles(shape, tile, form=KernelForm(any_rows=True), **rates)


@pytest.mark.parametrize(("parts", "most", "saved"), [(1, 66, 100), (4, 15, 200)])
def test_launches_that_fit_the_chip_beside_the_next_one_begin_early(parts, most, saved):
    for count, expected in ((most, 1000 - saved), (most + 1, 1000)):
        shape = ProductShape(128 * count, 128, 0)
        found = of_any_rows(
            shape, tiles(parts=parts), start_cycles=1000.0, early_launch_saved_cycles=100.0
        )
        assert found == expected


def test_few_blocks_do_not_keep_the_memory_busy():
    moved = 2 * (SQUARE.m + SQUARE.n) * SQUARE.k + 2 * SQUARE.m * SQUARE.n
    assert of_any_rows(SQUARE, tiles(), sm_memory_bytes=1.0) == moved
    two = replace(SQUARE, n=256)
    moved = 2 * (two.m + two.n) * two.k + 2 * two.m * two.n
    assert of_any_rows(two, tiles(), sm_memory_bytes=1.0) == moved / 2
    assert cycles(SQUARE, tiles(), sm_memory_bytes=1.0) == cycles(SQUARE, tiles()).expected


def test_tiles_of_few_rows_beside_each_other_ask_for_the_same_weights():
    """Two of 128 columns, in one wave."""
    two = replace(SQUARE, n=256, is_transposed=True)
    moved = 2 * (two.m + two.n) * two.k + 2 * two.m * two.n
    assert of_any_rows(two, tiles(), sm_memory_bytes=1.0, extra_tile_cost=0.5) == moved / 2 * 1.5
    plain = replace(two, is_transposed=False)
    assert of_any_rows(plain, tiles(), sm_memory_bytes=1.0, extra_tile_cost=0.5) == moved / 2
    assert (
        cycles(two, tiles(), extra_tile_cost=0.5)
        == cycles(two, tiles(), extra_tile_cost=0.0).expected
    )


def test_rows_that_are_not_there_are_not_loaded_by_kernels_of_any_rows():
    few = replace(SQUARE, m=2)
    whole, some = (128 + 128) * 64 * 2 * 10, (2 + 128) * 64 * 2 * 10
    assert cycles(few, tiles(), fill_bytes=1.0) == whole
    assert of_any_rows(few, tiles(), fill_bytes=1.0) == some
