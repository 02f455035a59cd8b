"""PlanRingBuffers: tiles that threads write, and that leave from the slots of a ring."""

from __future__ import annotations

import re

import pytest

import tvm_hopper
from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper.schedule import Roles
from tvm_hopper.testing import copies, pointwise
from tvm_hopper.transforms import (
    InsertSyncs,
    LowerChannelsToMbarriers,
    PlanRingBuffers,
    ScheduleTiles,
)
from tvm_hopper.transforms.common.explain_notes import RingNote, StoreRingNote

BEFORE = """
def func(A: T.Buffer((256, 64), "float32"), C: T.Buffer((256, 64), "float32")):
    for by in T.thread_binding(2, thread="blockIdx.y"):
        for bx in T.thread_binding(2, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                for n in range(2):
                    for k in T.serial(4):
                        with T.sblock("", reads=[], writes=[]):
                            tile = T.sblock_alloc_buffer((8, 64), "float32", scope="shared.dyn")
                            for r in range(8):
                                tile[r, tx] = A[by * 128 + n * 64 + k * 16 + bx * 8 + r, tx]
                            with T.sblock("store", reads=[tile[0:8, 0:64]],
                                writes=[C[0:256, 0:64]], async_op="bulk_store", store_slots=3):
                                T.call_extern("int32", "store",
                                    T.address_of(C[by * 128 + n * 64 + k * 16 + bx * 8, 0]),
                                    T.address_of(tile[0, 0]))
"""

AFTER = """
def func(A: T.Buffer((256, 64), "float32"), C: T.Buffer((256, 64), "float32")):
    for by in T.thread_binding(2, thread="blockIdx.y"):
        for bx in T.thread_binding(2, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("kernel", reads=[], writes=[], kernel=1):
                    tile = T.sblock_alloc_buffer((3, 8, 64), "float32", scope="shared.dyn")
                    with T.sblock("tile", reads=[], writes=[], tile_work=1):
                        for n in range(2):
                            for k in range(4):
                                trip: T.let[T.int32] = n * 4 + k
                                for r in range(8):
                                    tile[trip % 3, r, tx] = A[
                                        by * 128 + n * 64 + k * 16 + bx * 8 + r, tx
                                    ]
                                with T.sblock("store", reads=[tile[trip % 3, 0:8, 0:64]],
                                    writes=[C[0:256, 0:64]], async_op="bulk_store", store_ring=0):
                                    T.call_extern("int32", "tvm_hopper.store_slot", 0, trip)
                                    T.call_extern("int32", "store",
                                        T.address_of(C[by * 128 + n * 64 + k * 16 + bx * 8, 0]),
                                        T.address_of(tile[trip % 3, 0, 0]))
"""

STAGES = ("T.serial(4)", "T.serial(4, stage=[0, 2], order=[0, 1], async_stages=[2])")
ONE_SLOT = ("store_slots=3", "store_slots=1")
NO_REQUEST = (", store_slots=3", "")
PERSISTENT = (
    'T.thread_binding(2, thread="blockIdx.x")',
    'T.thread_binding(2, thread="blockIdx.x", persistent=1)',
)


def test_each_life_of_a_tile_takes_the_next_slot():
    got = run(parse(BEFORE), PlanRingBuffers())
    check(got, parse(AFTER))
    assert notes_of(got) == (StoreRingNote("tile", 3, 2048),)


def test_stages_of_tvm_say_the_same():
    by_stages = parse(BEFORE, NO_REQUEST, STAGES)
    check(run(by_stages, PlanRingBuffers()), parse(AFTER))
    by_both = parse(BEFORE, STAGES)
    check(run(by_both, PlanRingBuffers()), parse(AFTER))


@pytest.mark.parametrize("change", [ONE_SLOT, NO_REQUEST])
def test_one_slot_is_no_ring(change):
    got = run(parse(BEFORE, change), PlanRingBuffers())
    check(got, parse(BEFORE, NO_REQUEST))


def test_planned_once():
    check(run(parse(BEFORE), PlanRingBuffers(), PlanRingBuffers()), parse(AFTER))


def test_slots_are_counted_on_over_output_tiles():
    got = run(parse(BEFORE, PERSISTENT), PlanRingBuffers(), ScheduleTiles())
    assert "trip: T.let[T.int32] = 4 * (2 * tile_1) + (n * 4 + k)" in got.script()


def test_nothing_of_the_ring_is_left_but_its_slots():
    text = run(parse(BEFORE), PlanRingBuffers(), InsertSyncs(), LowerChannelsToMbarriers()).script()
    assert "tvm_hopper.store" not in text
    assert "trip" not in text
    assert "(n * 4 + k) % 3" in text


# -- what is waited for


def pending(text: str) -> list[str]:
    """Return the waits for bulk groups: how many may be pending, and whether sources are enough."""
    return re.findall(r'T\.ptx\.cp\((\d+), "async", "bulk", "wait_group", "(\w*)"', text)


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_all_stores_but_one_may_be_pending(slots):
    change = ("store_slots=3", f"store_slots={slots}")
    text = run(parse(BEFORE, change), PlanRingBuffers(), InsertSyncs()).script()
    assert pending(text) == [(str(slots - 1), "read"), ("0", "read")]
    assert text.count("storage_sync") == 2  # the slot is free; the tile is written
    assert text.count("fence") == 1


@pytest.mark.parametrize("roles", [None, Roles(2)], ids=["one-role", "producer"])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_beside_a_ring_of_loads(roles, slots):
    tiling = pointwise.Tiling(
        (8, 128), steps=6, stages=3, roles=roles, store="tma", store_slots=slots
    )
    sch = pointwise.schedule(pointwise.exp_add(96, 128), tiling)
    text = tvm_hopper.pipeline.lower(sch.mod, TARGET, until="tvm_hopper.InsertSyncs").script()
    assert pending(text) == [(str(slots - 1), "read"), ("0", "read")]


TARGET = "nvidia/nvidia-h200"


@pytest.mark.parametrize(
    ("stages", "slots", "ahead", "waits"),
    [
        (1, None, 0, 0),
        (2, None, 1, 0),
        (3, None, 1, 1),
        (4, None, 2, 1),
        (4, 1, 3, 0),
        (4, 3, 1, 2),
        (4, 4, 0, 3),
    ],
)
def test_a_tile_that_is_loaded_leaves_slots_to_stores(stages, slots, ahead, waits):
    """Slots = look-ahead + the one in use + those of stores in flight."""
    route = copies.Route((8, 64), 10, stages=stages, slots=slots)
    sch = copies.schedule(copies.copy(80, 64), route)
    lowered = tvm_hopper.pipeline.lower(sch.mod, TARGET, until="tvm_hopper.InsertSyncs")
    text = lowered.script()
    assert RingNote(0, stages, 1024, stores_in_flight=waits) in notes_of(lowered["main"])
    assert (f"range({ahead})" in text) == (ahead > 1)
    assert pending(text) == [(str(waits), "read"), ("0", "read")]
    assert stages == ahead + 1 + waits


@pytest.mark.parametrize(("steps", "in_flight"), [(4, 0), (5, 1)])
def test_slots_that_are_used_once_are_all_for_loads(steps, in_flight):
    sch = copies.schedule(copies.copy(80, 64), copies.Route((8, 64), steps, stages=4))
    lowered = tvm_hopper.pipeline.lower(sch.mod, TARGET, until="tvm_hopper.PlanRingBuffers")
    assert notes_of(lowered["main"])[-1] == RingNote(0, 4, 1024, stores_in_flight=in_flight)


def test_explained():
    tiling = pointwise.Tiling((8, 128), steps=6, stages=3, store="tma", store_slots=3)
    sch = pointwise.schedule(pointwise.exp_add(96, 128), tiling)
    said = str(tvm_hopper.explain(sch.mod, TARGET))
    assert re.search(r"store ring C_shared.dyn +3 slots of 4096 bytes, 2 stores in flight", said)
    assert re.search(r"C_shared.dyn +12288 bytes at", said)
    sch = copies.schedule(copies.copy(80, 64), copies.Route((8, 64), 10, stages=4))
    said = str(tvm_hopper.explain(sch.mod, TARGET))
    assert re.search(r"ahead +2 iterations, 1 slot left to stores", said)
