"""Pointwise kernels over tiles that TMA brings, with and without a producer warp."""

import pytest

from tests.sim_kernels.pointwise_kernels import check, scheduled
from tvm_hopper import pipeline, schedule as hs
from tvm_hopper.testing.pointwise import Tiling

BOTH = pytest.mark.parametrize("roles", [None, hs.Roles(2)], ids=["one-role", "producer"])
SMALL = {"tile": (8, 128), "threads": 256}


@BOTH
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_every_number_of_slots(roles, stages):
    check("exp_add", (80, 128), Tiling(steps=5, stages=stages, roles=roles, **SMALL))


@BOTH
def test_ragged_sizes(roles):
    check("exp_add", (61, 200), Tiling(steps=4, stages=3, roles=roles, **SMALL))


@pytest.mark.sampled(every=2)
@BOTH
@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_plain_readers_find_what_a_swizzle_moved(roles, swizzle):
    """B3: the reader of a swizzled tile was left where it was."""
    check("exp_add", (64, 256), Tiling(steps=4, stages=2, roles=roles, swizzle=swizzle, **SMALL))


@BOTH
def test_halves(roles):
    tiling = Tiling(tile=(8, 256), steps=4, threads=256, vector=8, stages=2, roles=roles)
    check("exp_add", (64, 256), tiling, "float16")


@BOTH
def test_one_dimension(roles):
    check("scale", (8192,), Tiling(tile=(1024,), steps=4, stages=2, roles=roles))


@BOTH
def test_a_bias_read_from_global_memory(roles):
    check("add_row_bias", (64, 128), Tiling(steps=4, stages=3, roles=roles, **SMALL))


def test_fewer_steps_than_slots():
    check("exp_add", (16, 128), Tiling(steps=2, stages=4, **SMALL))


def test_a_copy_without_a_pipeline():
    check("exp_add", (32, 128), Tiling(steps=2, stages=None, **SMALL))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("policy", ["lifo", "random", "starve:consumer", "starve:producer"])
@BOTH
def test_under_every_policy(roles, policy):
    check("exp_add", (80, 128), Tiling(steps=5, stages=2, roles=roles, **SMALL), policy=policy)


def count(text: str, word: str) -> int:
    return sum(word in line for line in text.splitlines())


def test_one_role_meets_once_an_iteration_and_waits_for_what_it_reads():
    _, sch = scheduled("exp_add", (160, 128), Tiling(steps=10, stages=4, **SMALL), "float32")
    text = pipeline.lower(
        sch.mod, "nvidia/nvidia-h200", until="tvm_hopper.LowerChannelsToMbarriers"
    ).script()
    assert count(text, "mbarrier_wait") == 1  # for both tiles, in front of what reads them
    assert count(text, "tvm_storage_sync") == 2  # behind the barriers' start, and in the loop
    assert count(text, '"proxy", "async"') == 1


def test_consumers_arrive_once_a_warp():
    tiling = Tiling(steps=10, stages=4, roles=hs.Roles(2), **SMALL)
    _, sch = scheduled("exp_add", (160, 128), tiling, "float32")
    text = pipeline.lower(
        sch.mod, "nvidia/nvidia-h200", until="tvm_hopper.LowerChannelsToMbarriers"
    ).script()
    assert "(empty[slot])), T.uint32(8)" in text
    assert 'thread_binding(288, thread="threadIdx.x")' in text
    assert count(text, "setmaxnreg") == 0
    assert count(text, "warp_sync") == count(text, '"proxy", "async"') == 1


@pytest.mark.parametrize(
    ("name", "shape", "tiling", "dtype"),
    [
        # 8 floats are two chunks of the XOR pattern, which may lie apart
        ("exp_add", (17, 128), {"tile": (16, 128), "threads": 32, "swizzle": 32}, "float32"),
        # 8 elements at a multiple of 8 stay in a row of 320, but their indices are no ramp
        ("add_row_bias", (40, 640), {"tile": (4, 320), "threads": 64}, "float16"),
    ],
    ids=["swizzle", "rows"],
)
def test_vectors_whose_elements_lie_apart(name, shape, tiling, dtype):
    check(name, shape, Tiling(steps=2, vector=8, stages=3, **tiling), dtype)
