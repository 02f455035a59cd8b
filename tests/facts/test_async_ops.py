"""The table of asynchronous operations."""

from tvm_hopper.facts.async_ops import ASYNC_OPS, COMPLETIONS, find_copy_op, find_mechanisms


def test_every_row_completes_in_a_known_way():
    assert set(ASYNC_OPS) == {
        "cp_async",
        "cp_async_arrive",
        "bulk_load",
        "tma_load",
        "tma_store",
        "bulk_store",
        "tma_reduce",
        "bulk_reduce",
        "wgmma",
        "dma_load",
    }
    assert {op.completion for op in ASYNC_OPS.values()} == set(COMPLETIONS)


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
    assert [op.name for op in ASYNC_OPS.values() if op.repeats_in_place] == [
        "tma_reduce",
        "bulk_reduce",
        "wgmma",
    ]


def test_a_mechanism_is_served_by_the_instruction_for_the_memories_at_both_ends():
    found = {
        (op, reads, writes): getattr(find_copy_op(op, reads, writes), "name", None)
        for op in ("tma", "bulk", "cp_async", "dma", "")
        for reads, writes in (
            ("global", "shared"),
            ("shared", "global"),
            ("shared", "shared"),
            ("global", "vtcm"),
        )
    }
    assert {key: name for key, name in found.items() if name} == {
        ("tma", "global", "shared"): "tma_load",
        ("tma", "shared", "global"): "tma_store",
        ("bulk", "global", "shared"): "bulk_load",
        ("bulk", "shared", "global"): "bulk_store",
        ("cp_async", "global", "shared"): "cp_async",
        ("dma", "global", "vtcm"): "dma_load",
    }


def test_stores_that_combine_are_other_instructions():
    assert find_copy_op("tma", "shared", "global", combines=True).name == "tma_reduce"
    assert find_copy_op("bulk", "shared", "global", combines=True).name == "bulk_reduce"
    assert find_copy_op("tma", "global", "shared", combines=True) is None


def test_mechanisms_between_memories():
    assert find_mechanisms("shared", "global") == ("bulk", "tma")
    assert find_mechanisms("global", "shared") == ("bulk", "cp_async", "tma")
    assert find_mechanisms("shared", "registers") == ()
    assert find_mechanisms("global", "vtcm") == ("dma",)


def test_groups_of_a_queue_are_opened():
    assert [op.name for op in ASYNC_OPS.values() if op.opens_group] == ["dma_load"]


def test_loads_fill_what_lies_on_chip():
    loads = [op.name for op in ASYNC_OPS.values() if op.is_load]
    assert loads == ["tma_load", "bulk_load", "cp_async", "cp_async_arrive", "dma_load"]


def test_what_another_agent_waits_for_completes_on_a_barrier():
    """Bulk copies do so anyway; of cp.async there is a form of its own, for the same memories."""
    pairs = [(op, ASYNC_OPS[op.handed_over]) for op in ASYNC_OPS.values() if op.handed_over]
    assert [(a.name, b.name) for a, b in pairs] == [("cp_async", "cp_async_arrive")]
    for one, other in pairs:
        assert one.needs_commit
        assert not other.needs_commit
        assert (one.reads, one.writes, one.proxy) == (other.reads, other.writes, other.proxy)
    loads = [op for op in ASYNC_OPS.values() if op.is_load and op.writes == "shared"]
    assert all(op.handed_over for op in loads if op.needs_commit)
