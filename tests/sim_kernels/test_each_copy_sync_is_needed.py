"""Every sync of rings by cp.async and in bulk, and of stores: without it the simulator objects.

Five trips over two slots. What nobody misses is said so, with the reason.
"""

import functools

import numpy as np
import pytest
from tvm import tirx

from tests.sim_kernels import pointwise_kernels
from tests.sim_kernels.each_sync import make_tests, rules_broken
from tests.sim_kernels.mutate import change, with_argument
from tvm_hopper.simulation import Program, load
from tvm_hopper.testing import copies
from tvm_hopper.testing.copies import Route
from tvm_hopper.testing.pointwise import Tiling

LOADED_BY_THREADS = "a store of what threads compute"
SHAPE, COMPUTED = (40, 64), (20, 64)
ROUTES = {
    "cp.async": ("cp_async", None),
    "bulk": ("bulk", None),
    "cp.async, a warp": ("cp_async", None),
    "cp.async, tma": ("cp_async", "tma"),  # no thread stores: one warp
    "bulk, bulk": ("bulk", "bulk"),
}
DATA = {"cp_async_cg", "cp_async_bulk_g2s_cluster", "cp_async_bulk_s2g", "cp_async_bulk_tensor_s2g"}

COMMIT, WAIT = "cp_async_commit_group", "cp_async_wait_group"
BULK_COMMIT, BULK_WAIT = "cp_async_bulk_commit_group", "cp_async_bulk_wait_group"
MEET, MEET_IN_WARP, FENCE = "tvm_storage_sync", "warp_sync", "fence_proxy"
INIT, EXPECT, AWAIT = "mbarrier_init", "mbarrier_arrive_expect_tx", "mbarrier_wait"
# For each instruction rules that have to be broken without it.
REMOVED = {
    ("cp.async", COMMIT, 0): {"RACE_READ_INFLIGHT"},
    ("cp.async", WAIT, 0): {"RACE_OVERWRITE_BUSY", "RACE_READ_INFLIGHT"},
    ("cp.async", MEET, 0): {"RACE_OVERWRITE_BUSY", "RACE_READ_INFLIGHT"},
    ("cp.async", COMMIT, 1): {"RACE_OVERWRITE_BUSY", "RACE_READ_INFLIGHT"},
    # Behind the loop: that no load is left by then is not seen by who places it.
    ("cp.async", WAIT, 1): set(),
    ("cp.async, a warp", COMMIT, 0): {"RACE_READ_INFLIGHT"},
    ("cp.async, a warp", WAIT, 0): {"RACE_OVERWRITE_BUSY", "RACE_READ_INFLIGHT"},
    # Lanes run in lockstep there: what one overwrites the others have read.
    ("cp.async, a warp", MEET_IN_WARP, 0): {"RACE_READ_INFLIGHT"},
    ("cp.async, a warp", COMMIT, 1): {"RACE_OVERWRITE_BUSY", "RACE_READ_INFLIGHT"},
    ("cp.async, a warp", WAIT, 1): set(),
    ("bulk", INIT, 0): {"MBAR_USE_BEFORE_INIT"},
    ("bulk", "fence_mbarrier_init", 0): {"MBAR_INIT_FENCE"},
    # The loop's own barrier comes in front of the first wait, and is enough.
    ("bulk", MEET, 0): set(),
    ("bulk", EXPECT, 0): {"DEADLOCK"},
    ("bulk", FENCE, 0): {"PROXY_FENCE_MISSING_WAR"},
    ("bulk", MEET, 1): {"RACE_OVERWRITE_BUSY"},
    ("bulk", EXPECT, 1): {"DEADLOCK"},
    ("bulk", AWAIT, 0): {"RACE_READ_INFLIGHT", "MBAR_MISSING_WAIT"},
    ("cp.async, tma", COMMIT, 0): {"RACE_READ_INFLIGHT"},
    ("cp.async, tma", WAIT, 0): {"RACE_READ_INFLIGHT"},
    # The next one also stands between the loads and the store.
    ("cp.async, tma", MEET_IN_WARP, 0): set(),
    ("cp.async, tma", BULK_WAIT, 0): {"RACE_OVERWRITE_BUSY"},
    ("cp.async, tma", MEET_IN_WARP, 1): {"RACE_OVERWRITE_BUSY"},
    ("cp.async, tma", COMMIT, 1): {"RACE_READ_INFLIGHT"},
    ("cp.async, tma", FENCE, 0): {"PROXY_FENCE_MISSING"},
    ("cp.async, tma", BULK_COMMIT, 0): {"BULK_GROUP_MISUSE", "RACE_OVERWRITE_BUSY"},
    ("cp.async, tma", BULK_WAIT, 1): {"EXIT_PENDING_ASYNC"},
    ("cp.async, tma", WAIT, 1): set(),
    ("bulk, bulk", INIT, 0): {"MBAR_USE_BEFORE_INIT"},
    ("bulk, bulk", "fence_mbarrier_init", 0): {"MBAR_INIT_FENCE"},
    # One thread uses the mbarrier; where others wait, it needs this barrier.
    ("bulk, bulk", MEET, 0): set(),
    ("bulk, bulk", EXPECT, 0): {"DEADLOCK"},
    ("bulk, bulk", BULK_WAIT, 0): {"RACE_OVERWRITE_BUSY"},
    ("bulk, bulk", EXPECT, 1): {"DEADLOCK"},
    ("bulk, bulk", AWAIT, 0): {"RACE_READ_INFLIGHT", "MBAR_MISSING_WAIT"},
    ("bulk, bulk", BULK_COMMIT, 0): {"BULK_GROUP_MISUSE", "RACE_OVERWRITE_BUSY"},
    ("bulk, bulk", BULK_WAIT, 1): {"EXIT_PENDING_ASYNC"},
    (LOADED_BY_THREADS, BULK_WAIT, 0): {"RACE_OVERWRITE_BUSY"},
    (LOADED_BY_THREADS, MEET, 0): {"RACE_OVERWRITE_BUSY"},
    (LOADED_BY_THREADS, FENCE, 0): {"PROXY_FENCE_MISSING"},
    (LOADED_BY_THREADS, MEET, 1): {"RACE_READ_INFLIGHT"},
    (LOADED_BY_THREADS, BULK_COMMIT, 0): {"BULK_GROUP_MISUSE", "RACE_OVERWRITE_BUSY"},
    (LOADED_BY_THREADS, BULK_WAIT, 1): {"EXIT_PENDING_ASYNC"},
}


@functools.cache
def right(kind: str) -> tuple[Program, dict]:
    """Return the kernel as our passes emit it, and values."""
    if kind in ROUTES:
        threads = 32 if kind.endswith("a warp") else 64
        route = Route((4, 64), 5, *ROUTES[kind], stages=2, threads=threads, vector=1)
        sch = copies.schedule(copies.copy(*SHAPE, dtype="float32"), route)
    else:
        tiling = Tiling((4, 64), threads=64, steps=5, stages=None, num_shared=0, store="bulk")
        _, sch = pointwise_kernels.scheduled("exp_add", COMPUTED, tiling, "float32")
    rng = np.random.default_rng(1)
    shape, names = (SHAPE, "A") if kind in ROUTES else (COMPUTED, "AB")
    return load(sch.mod), {name: rng.integers(-3, 4, shape).astype("float32") for name in names}


test_the_kernels_are_clean, test_simulator_misses_it, test_every_sync_is_in_the_table = make_tests(
    right, REMOVED, DATA
)


def plus_one(old):
    return old + 1


@pytest.mark.parametrize(
    ("kind", "instruction", "rule"),
    [
        ("cp.async", WAIT, "RACE_READ_INFLIGHT"),
        ("cp.async, tma", BULK_WAIT, "RACE_OVERWRITE_BUSY"),
        ("bulk, bulk", BULK_WAIT, "RACE_OVERWRITE_BUSY"),
    ],
)
def test_one_group_more_may_not_be_in_flight(kind, instruction, rule):
    program, values = right(kind)
    wrong = change(program, instruction, 0, with_argument(0, plus_one))
    assert rule in rules_broken(wrong, values, {rule})


@pytest.mark.parametrize(("by", "rule"), [(-16, "MBAR_TX_MISMATCH"), (16, "DEADLOCK")])
def test_bytes_of_a_bulk_load_are_exact(by, rule):
    more = with_argument(1, lambda old: tirx.const(int(old) + by, "uint32"))
    program, values = right("bulk")
    assert rule in rules_broken(change(program, EXPECT, None, more), values, {rule})
