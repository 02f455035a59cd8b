"""The census holds: passes act where they acted, and final kernels are as they were."""

from __future__ import annotations

import importlib
import json

import pytest

from tests.census.__main__ import DATA
from tests.census.kernels import KERNELS
from tests.census.record import record
from tvm_hopper import pipeline
from tvm_hopper.requests.keys import PREFIX

CENSUS = json.loads(DATA.read_text())
# passes that act on none of these kernels, and a test that shows what they do
ELSEWHERE = {
    "BesideProducts": "test_beside_products.test_values_and_every_interleaving",
    "ExpandInner": "test_expand_inner.test_the_inner_pipeline_is_expanded_and_the_outer_one_stays",
    "GatherVectors": "test_gather_vectors.test_neighbours_are_one_load",
    "HoistConditions": "test_hoist_conditions.test_conditions_on_iterations",
    "KeepConditions": "test_keep_conditions.test_more_thread_blocks_than_tiles",
    "MeetBehindLoops": "test_meet_behind_loops.test_a_pipeline_of_fewer_turns_than_stages",
    "NoteRows": "test_note_rows.test_rows_and_time_are_noted",
    "OverlayShared": "test_overlay_shared.test_again_finds_nothing",
    "OwnRegisters": "test_own_registers.test_each_thread_has_its_part",
    "PairStores": "test_pair_stores.test_pairs_of_a_lane",
    "RefuseLeftovers": "test_lower_channels.test_an_annotation_that_nothing_acts_on_is_refused",
    "ResolveBounds": "test_resolve_bounds.test_the_least_index_of_a_compact_buffer",
    "SimplifyRegisterIndices": "test_simplify_register_indices.test_what_ranges_decide_is_left_out",
    "SkewTurns": "test_skew_turns.test_the_next_row_is_sent_before_this_turn_waits",
    "UnrollRegisters": "test_unroll_registers.test_loops_over_registers_are_marked",
    "UnstageRows": "test_unstage_rows.test_rows_are_read_from_memory",
    "ValuesAhead": "test_values_ahead.test_a_value_is_loaded_a_turn_earlier",
    "WidenFunctions": "test_widen_functions.test_operands_are_widened_and_results_rounded",
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
    file, test = ELSEWHERE[name].split(".")
    module = importlib.import_module(f"tests.transforms.{file}")
    assert callable(getattr(module, test))
    assert hasattr(module, name)
