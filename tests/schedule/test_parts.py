"""In how many parts a sum is taken when nobody says so, and what keeps it whole."""

import json
import math
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.facts.devices import Chip
from tvm_hopper.schedule.products.candidates import candidates
from tvm_hopper.schedule.products.class_choice import estimate_all
from tvm_hopper.schedule.products.model import as_product, listed
from tvm_hopper.schedule.products.parts import (
    CLUSTER_DIVISIBLE_PARTS,
    CLUSTER_SIZES,
    in_clusters,
    in_parts,
)
from tvm_hopper.schedule.products.product_shape import ProductShape
from tvm_hopper.testing import workloads

TIMES = Path(__file__).with_name("split_k_times.json")  # of `benchmarks.split_k`, one H200
DEEP = (128, 256, 16384)


def tried(shape, given=None, chip=None):
    """Return the tiles of a product with their parts."""
    given = given or hs.MatmulConfig()
    tiles = in_parts(candidates("float16", given), ProductShape(*shape), given, chip or Chip())
    return [(*tiles.tile(i), int(tiles.parts[i])) for i in range(len(tiles))]


def test_whole_tiles_are_in_front():
    """Of equals the first one is taken."""
    found, whole = tried(DEEP), tried(DEEP, hs.MatmulConfig(split_k=1))
    assert found[: len(whole)] == whole
    assert {parts for *_, parts in found[len(whole) :]} == set(CLUSTER_SIZES)


def test_every_part_has_steps_enough():
    """300 in steps of 64 are five, which two blocks can share; in steps of 128 three."""
    assert {(depth, parts) for *_, depth, parts in tried((64, 64, 300))} == {
        (64, 1),
        (64, 2),
        (128, 1),
    }


def test_tiles_that_fill_the_chip_stay_whole():
    found = tried((8192, 8192, 8192))
    assert {parts for *_, parts in found} == {1}
    small = tried((1024, 2048, 8192))
    shared = {(rows, columns) for rows, columns, _, parts in small if parts > 1}
    assert (64, 64) not in shared  # 512 of them
    assert (128, 128) in shared


def test_as_many_parts_as_are_given():
    assert {parts for *_, parts in tried((8192, 8192, 64), hs.MatmulConfig(split_k=3))} == {3}


@pytest.mark.parametrize(
    "given",
    [
        hs.MatmulConfig(split_k=1),
        hs.MatmulConfig(batch_invariant=True),
        hs.MatmulConfig(persistent=16),
        hs.MatmulConfig(store="tma"),
        hs.MatmulConfig(stages=tirx.Var("sampled", "int32") + 1),
    ],
)
def test_what_goes_with_no_parts_keeps_sums_whole(given):
    wanted = ProductShape(*DEEP)
    tiles = candidates("float16", hs.MatmulConfig())
    assert set(in_parts(tiles, wanted, given, Chip()).parts.tolist()) == {1}


def test_an_extent_that_is_not_known_keeps_sums_whole():
    k = tirx.Var("k", "int32")
    assert hs.choose_config(128, 256, k).split_k is None
    assert hs.choose_config(tirx.Var("m", "int32"), 256, 16384).split_k is None


def test_a_deep_sum_of_few_outputs_is_shared():
    config = hs.choose_config(*DEEP)
    assert config.parts in CLUSTER_DIVISIBLE_PARTS
    assert config.persistent == 0
    assert config == hs.choose_config(*DEEP)
    tiles = -(-128 // config.tile[0]) * -(-256 // config.tile[1])
    assert tiles * config.parts > 40
    assert hs.choose_config(4096, 4096, 4096).split_k is None


def test_a_workspace_is_used_where_it_may_be_and_is_worth_it():
    """Parts beyond a cluster's, and no more blocks than SMs; small sums stay in clusters."""
    may = hs.MatmulConfig(split_k="workspace")
    config = hs.choose_config(344, 296, 55680, given=may)
    assert config.split_mode == "workspace"
    tiles = -(-344 // config.tile[0]) * -(-296 // config.tile[1])
    assert 100 < tiles * config.parts <= 132
    apart = hs.choose_config(344, 296, 55680, given=hs.MatmulConfig(split_k="cluster"))
    assert (apart.split_mode, apart.parts in CLUSTER_SIZES) == (None, True)
    both = hs.choose_config(344, 296, 55680)
    assert (both.split_mode, both.parts in CLUSTER_DIVISIBLE_PARTS) == ("caller", True)
    assert both == hs.choose_config(344, 296, 55680, given=hs.MatmulConfig(split_k="caller"))
    small = hs.choose_config(64, 64, 512, given=may)
    assert small.split_mode is None
    assert hs.choose_config(4096, 4096, 4096, given=may).split_k is None
    with tvm.target.Target("nvidia/nvidia-h200"):
        sch = s_tir.Schedule(workloads.matmul(128, 256, 32768))
        hs.matmul(sch, "C", may)
        assert "by two kernels" in str(tvm_hopper.explain(sch.mod, target="nvidia/nvidia-h200"))


def test_few_rows_are_shared_transposed():
    config = hs.choose_config(4, 1024, 28672)
    assert config.transposed
    assert config.parts in CLUSTER_DIVISIBLE_PARTS


def test_a_ring_has_no_more_slots_than_a_part_has_steps():
    config = hs.choose_config(64, 64, 1024, given=hs.MatmulConfig((64, 64, 64), split_k=4))
    assert config.stages == 4


def test_explain_lists_parts():
    sch = s_tir.Schedule(workloads.matmul(64, 128, 8192, out_dtype="float16"))
    hs.matmul(sch, "C")
    text = str(tvm_hopper.explain(sch.mod, target="nvidia/nvidia-h200"))
    assert "chosen by estimate" in text
    parts = hs.choose_config(64, 128, 8192).parts
    assert f" in {parts} parts" in text
    assert "without batch_invariant" not in text


def test_a_promise_of_bits_keeps_the_sum_whole_and_says_what_it_costs():
    sch = s_tir.Schedule(workloads.matmul(64, 128, 8192, out_dtype="float16"))
    hs.matmul(sch, "C", hs.MatmulConfig(batch_invariant=True))
    assert "across_cluster" not in sch.mod.script()
    text = str(tvm_hopper.explain(sch.mod, target="nvidia/nvidia-h200"))
    listed, _, cost = text.partition("without batch_invariant: ")
    assert " parts" not in listed
    assert " parts" in cost.splitlines()[0]


def test_more_parts_than_run_everywhere_are_told_of_and_not_taken():
    wanted = ProductShape(64, 128, 65536)
    clusters = hs.MatmulConfig(split_k="cluster")
    config = hs.choose_config(64, 128, 65536, given=clusters)
    assert config.split_k in CLUSTER_SIZES
    *five, more = listed(wanted, clusters, Chip())
    assert len(five) == 5
    assert more.startswith("on request, where the chip holds clusters of ")
    assert len(listed(wanted, hs.MatmulConfig(split_k=8), Chip())) == 5
    assert len(listed(ProductShape(4096, 4096, 4096), hs.MatmulConfig(), Chip())) == 5


def times_of_split_k():
    """Return problem, configuration and microseconds of each row that `benchmarks.split_k` took."""
    rows = json.loads(TIMES.read_text())["rows"]
    return [
        (tuple(map(int, row["size"].split("x"))), row["config"], row["ours"]["median_us"])
        for row in rows
        if row["config"]
    ]


def guess(size, config):
    given = hs.MatmulConfig(tuple(config["tile"]), split_k=config.get("split_k", 1))
    whole = hs.choose_config(*size, "bfloat16", given=given)
    wanted = as_product(*size, "bfloat16", ("k", "k"), "bfloat16")
    return float(estimate_all([wanted], [whole], Chip())[0, 0])


def test_times_that_were_not_fitted_are_near_the_estimates():
    found = times_of_split_k()
    assert len(found) > 50
    errors = [math.log(guess(size, config) / us) for size, config, us in found]
    assert math.sqrt(sum(x * x for x in errors) / len(errors)) < 0.15
    for _, group in groupby(found, key=lambda row: row[0]):
        rows = list(group)
        chosen = min(rows, key=lambda row: guess(*row[:2]))
        assert chosen[2] <= 1.06 * min(us for *_, us in rows), chosen


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"split_k": 2, "batch_invariant": True}, r"found split_k=2 with batch_invariant=True"),
        ({"batch_invariant": None}, r"found batch_invariant=None; need True or False"),
    ],
)
def test_refusals(fields, match):
    with pytest.raises(ScheduleError, match=match):
        hs.MatmulConfig(**fields)


def test_whole_sums_of_every_class_where_bits_are_promised():
    given = hs.MatmulConfig(batch_invariant=True)
    for rows in (1, 16, 64, 512):
        assert hs.choose_config(rows, 1024, 28672, given=given).split_k is None
    shared = [hs.choose_config(rows, 1024, 28672).parts for rows in (1, 16, 64)]
    assert np.all([parts in CLUSTER_DIVISIBLE_PARTS for parts in shared])


@pytest.mark.parametrize("n", [1664, 1600])
def test_clusters_whose_end_tvm_would_write_over_blocks_are_not_tried(n):
    """26 tiles of 64 columns in fours: "2 x + y < 13" bounds no index of B."""
    tiles, wanted = candidates("float16", hs.MatmulConfig()), ProductShape(7120, n, 184)
    found = in_clusters(tiles, wanted, hs.MatmulConfig(), Chip())
    fours = (found.rows_of_blocks == 2) & (found.columns_of_blocks == 4) & (found.columns == 64)
    assert fours.any() == (n == 1600)


def pairs_of(product, rows, columns):
    """Return the columns, or rows, of the tiles that are tried in such pairs."""
    found = in_clusters(
        candidates("float16", hs.MatmulConfig()), product, hs.MatmulConfig(), Chip()
    )
    is_pair = (found.rows_of_blocks == rows) & (found.columns_of_blocks == columns)
    return (found.rows if rows > 1 else found.columns)[is_pair]


def test_which_pairs_are_tried_follows_from_where_rows_begin():
    """A has more rows, so that (1, 2) shares what is loaded most."""
    assert len(pairs_of(ProductShape(4096, 512, 1000), 1, 2))  # off sectors
    assert len(pairs_of(ProductShape(4096, 512, 1000), 2, 1))
    assert len(pairs_of(ProductShape(4096, 512, 1040), 1, 2))  # at sectors, off lines
    assert not len(pairs_of(ProductShape(4096, 512, 1040), 2, 1))
    assert len(pairs_of(ProductShape(512, 4096, 1040), 2, 1))
    assert not len(pairs_of(ProductShape(512, 4096, 1040), 1, 2))
    assert set(pairs_of(ProductShape(4096, 256, 1024), 1, 2)) == set(range(128, 256, 8))  # once
    assert not len(pairs_of(ProductShape(4096, 256, 1024), 2, 1))


def test_transposed_tiles_are_tried_in_larger_clusters_too():
    wanted = ProductShape(3232, 272, 4112, is_transposed=True)
    given = hs.MatmulConfig()
    tiles = in_clusters(candidates("float16", given), wanted, given, Chip())
    assert {1, 2, 4, 8} == set((tiles.rows_of_blocks * tiles.columns_of_blocks).tolist())
