"""The census holds: passes act where they acted, and final kernels are as they were."""

from __future__ import annotations

import importlib
import json

import pytest

from tests.census.__main__ import DATA
from tests.census.kernels import KERNELS
from tests.census.record import record
from tvm_hopper import pipeline
from tvm_hopper.requests import bodies
from tvm_hopper.requests.keys import PREFIX

CENSUS = json.loads(DATA.read_text())
# passes that act on none of these kernels, and a test that shows what they do
ELSEWHERE = {
    "OverlapEpilogueLoads": "wgmma.test_overlap_epilogue_loads.test_values_and_every_interleaving",
    "ExpandInnerPipelines": (
        "prepare.test_expand_inner_pipelines."
        "test_the_inner_pipeline_is_expanded_and_the_outer_one_stays"
    ),
    "HoistStoreGuards": "prepare.test_hoist_store_guards.test_conditions_on_iterations",
    "PropagateTileGuards": "prepare.test_propagate_tile_guards.test_more_thread_blocks_than_tiles",
    "BarrierAfterZeroTripLoops": (
        "legalize.test_barrier_after_zero_trip_loops.test_a_pipeline_of_fewer_turns_than_stages"
    ),
    "RecordConfiguration": "prepare.test_record_configuration.test_rows_and_time_are_noted",
    "OverlaySharedBuffers": (
        "sync.test_overlay_shared_buffers."
        "test_both_are_allocated_where_the_statement_about_them_stands"
    ),
    "PairFragmentStores": "mma_sync.test_pair_fragment_stores.test_pairs_of_a_lane",
    "RejectUnloweredRequests": (
        "mbarriers.test_lower_channels_to_mbarriers."
        "test_an_annotation_that_nothing_acts_on_is_refused"
    ),
    "SimplifyRegisterIndices": (
        "prepare.test_simplify_register_indices.test_what_ranges_decide_is_left_out"
    ),
    "UnrollRegisterLoops": (
        "legalize.test_unroll_register_loops.test_loops_over_registers_are_marked"
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_is_as_written(name: str) -> None:
    got, _ = record(KERNELS[name])
    assert got == CENSUS[name], "if it is meant: python -m tests.census --write"


def test_each_kernel_is_written() -> None:
    assert list(CENSUS) == list(KERNELS)


def test_each_pass_acts_somewhere() -> None:
    names = pipeline.passes.names(pipeline.full_list())
    ours = {x.removeprefix(PREFIX) for x in names if x.startswith(PREFIX)}
    acting = {x for kernel in CENSUS.values() for x in kernel["passes"]}
    assert acting | set(ELSEWHERE) == ours
    assert not acting & set(ELSEWHERE)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_test_where_a_pass_acts(name: str) -> None:
    file, _, test = ELSEWHERE[name].rpartition(".")
    module = importlib.import_module(f"tests.transforms.{file}")
    assert callable(getattr(module, test))
    assert hasattr(module, name)


ROADS = {  # has_rows, asks_for_copies
    "product": (False, True),
    "RMSNorm, staged": (True, True),
    "LayerNorm, cluster": (True, False),
    "column sum": (True, False),
    "copy of any size": (True, False),
}


@pytest.mark.parametrize("name", ROADS)
def test_stages_that_a_function_does_not_take(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told by what is requested, and would change nothing."""
    subject = KERNELS[name]
    mod = pipeline.lower(subject.make(), subject.target, before=f"{PREFIX}ReuseOperandTiles")
    (func,) = mod.functions.values()
    assert (bodies.has_rows(func), bodies.asks_for_copies(func)) == ROADS[name]
    monkeypatch.setattr(pipeline.passes, "_takes_stage_of", lambda *_: True)
    assert record(subject)[0] == CENSUS[name]
