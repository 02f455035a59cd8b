"""The table of asynchronous operations."""

from tvm_hopper.facts.async_ops import ASYNC_OPS, MECHANISMS


def test_every_row_has_a_known_mechanism():
    assert set(ASYNC_OPS) == {
        "cp_async",
        "bulk_load",
        "tma_load",
        "tma_store",
        "tma_reduce",
        "wgmma",
    }
    assert {op.completion for op in ASYNC_OPS.values()} == set(MECHANISMS)


def test_loads_complete_on_a_barrier_and_need_no_commit():
    assert not ASYNC_OPS["tma_load"].needs_commit
    assert ASYNC_OPS["tma_load"].read_needs == "mbarrier_wait"
    assert ASYNC_OPS["wgmma"].needs_commit


def test_a_store_frees_its_source_before_its_result_is_visible():
    store = ASYNC_OPS["tma_store"]
    assert (store.overwrite_needs, store.read_needs) == ("wait_group_read", "wait_group")


def test_only_wgmma_may_start_before_earlier_instructions():
    assert [op.name for op in ASYNC_OPS.values() if not op.ordered_after_program] == ["wgmma"]


def test_what_may_be_repeated_in_place():
    assert [op.name for op in ASYNC_OPS.values() if op.repeats_in_place] == ["tma_reduce", "wgmma"]
