"""Tiles that leave shared memory by themselves: values, verdicts, and when they are waited for.

Trips, shapes, ranks and types of copies by TMA in and out are in `test_copies.py`.
"""

import numpy as np
import pytest
from tvm import tirx

from tests.sim_kernels.pointwise_kernels import check
from tvm_hopper import ir, pipeline, schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.simulation import load, verify
from tvm_hopper.testing import copies
from tvm_hopper.testing.copies import Route
from tvm_hopper.testing.pointwise import Tiling

H200 = "nvidia/nvidia-h200"
BOTH = pytest.mark.parametrize("roles", [None, hs.Roles(2)], ids=["one-role", "producer"])
SMALL = {"tile": (8, 128), "threads": 256, "store": "tma"}


def check_copy(shape, route: Route, dtype: str = "float16") -> None:
    """Verify a copy, and its values against the plain program."""
    report = verify(copies.schedule(copies.copy(*shape, dtype=dtype), route)).require_clean()
    assert "values compared" in str(report)


def test_the_thread_that_loads_and_stores_waits_alone():
    """A thread that comes to a wait when the next phase is over waits for another one."""
    sch = copies.schedule(copies.copy(24, 128), Route((8, 64), 3, stages=2))
    (kernel,) = load(sch.mod).kernels.values()
    waits = [x for x in ir.find_all(kernel, ir.Call) if x.op.name == "tirx.cuda.mbarrier_wait"]
    elected = ir.find_all(kernel, ir.IfThenElse, lambda x: isinstance(x.condition, tirx.EQ))
    assert waits
    assert all(any(ir.uses_node(branch, wait) for branch in elected) for wait in waits)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_every_swizzle(swizzle):
    check_copy((37, 192), Route((8, 64), 3, stages=2, swizzle=swizzle))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("way", ["load", "store"])
@pytest.mark.parametrize("mechanism", ["auto", "none"])
def test_what_no_hardware_moves_is_shared_out_among_the_threads(way, mechanism):
    """Bytes at odd places: every thread would run through the whole tile, and they would race."""
    other = {"load": "store", "store": "load"}[way]
    ways = {way: mechanism, other: None}
    check_copy((16, 101), Route((8, 64), 2, vector=1, stages=None, **ways), "int8")


def make_inputs(rows: int) -> dict[str, np.ndarray]:
    return {
        "A": np.arange(rows * 72, dtype="float16").reshape(rows, 72),
        "B": np.full((rows, 72), np.nan, "float16"),
    }


def test_clipped_at_both_ends_of_a_symbolic_tensor():
    sch = copies.schedule(copies.copy("n", 72), Route((8, 64), 2, stages=2))
    for rows in (1, 8, 13):
        verify(load(sch.mod), make_inputs(rows), against=copies.copy("n", 72)).require_clean()


@BOTH
@pytest.mark.parametrize("stages", [1, 3])
def test_what_threads_compute_leaves_by_tma(roles, stages):
    check("exp_add", (61, 200), Tiling(steps=4, stages=stages, roles=roles, **SMALL))


@BOTH
def test_staging_under_a_swizzle(roles):
    check("exp_add", (64, 256), Tiling(steps=3, stages=2, roles=roles, swizzle=64, **SMALL))


def test_without_a_pipeline():
    check("exp_add", (32, 128), Tiling(steps=2, stages=None, **SMALL))


# -- what is placed


def test_a_store_is_waited_for_where_its_slot_is_filled_again_and_at_the_end():
    sch = copies.schedule(copies.copy(48, 64), Route((8, 64), 6, stages=3))
    text = pipeline.lower(sch.mod, H200, until="tvm_hopper.InsertSyncs").script()
    words = ("await_filled", "wait_group", "commit_group", '"tile", "bulk_group"', "tma_load")
    found = [word for line in text.splitlines() for word in words if word in line]
    assert found == [
        "tma_load",  # two trips ahead, in front of the loop
        "wait_group",
        "tma_load",
        "await_filled",
        '"tile", "bulk_group"',
        "commit_group",
        "wait_group",
    ]
    assert text.count("storage_sync") == 0  # one thread loads and stores


def test_a_ring_by_cp_async_waits_for_the_group_of_its_trip():
    """Groups of two trips ahead, one a trip; the trip's own is the oldest of three."""
    route = Route((8, 64), 6, "cp_async", None, 3, threads=64)
    sch = copies.schedule(copies.copy(48, 64), route)
    text = pipeline.lower(sch.mod, H200, until="tvm_hopper.InsertSyncs").script()
    waits = [line.split("T.ptx")[1] for line in text.splitlines() if "wait_group" in line]
    assert [int("".join(c for c in wait.split(",")[0] if c.isdigit())) for wait in waits] == [1, 0]
    assert text.count("commit_group") == 3  # in front of the loop one for each trip, one in it
    assert text.count("storage_sync") == 1


def test_a_store_in_bulk_is_issued_committed_and_waited_for_by_one_thread():
    route = Route((8, 64), 6, None, "bulk", None, threads=64)
    sch = copies.schedule(copies.copy(48, 64), route)
    text = pipeline.lower(sch.mod, H200, until="tvm_hopper.InsertSyncs").script()
    groups = [x for x in map(str.strip, text.splitlines()) if "_group" in x and "T.ptx" in x]
    assert [name for x in groups for name in ("commit", "wait", "shared::cta") if name in x] == [
        "wait",  # in front of what fills the tile again: until it has been read
        "shared::cta",
        "commit",
        "wait",
    ]
    assert ['"read"' in x for x in groups if "wait_group" in x] == [True, True]
    assert text.count("if threadIdx_x == 0:") == 4  # around each of them


def test_no_store_is_made_by_cp_async():
    with pytest.raises(ScheduleError, match=r"mechanism.*cp_async.*tma.*bulk"):
        copies.schedule(copies.copy(48, 64), Route((8, 64), 6, store="cp_async"))
