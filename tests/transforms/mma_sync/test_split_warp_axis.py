"""SplitWarpAxis: an axis of 32 lanes where buffers belong to a warp."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.mma_sync.split_warp_axis import SplitWarpAxis, plan_warps

BEFORE = """
@T.prim_func(private=True, s_tir=True)
def func(C: T.Buffer((160,), "float16")):
    with T.launch_thread("blockIdx.x", 2) as bx:
        t = T.launch_thread("threadIdx.x", 160)
        fragment = T.alloc_buffer((64,), "float16", scope="warp")
        T.attr("tvm_hopper", "hand_threaded", 1)
        if t < 32:
            fragment[t % 32 * 2] = C[t]
        C[t] = fragment[t % 32 * 2 + 1]
"""
AFTER = """
@T.prim_func(private=True, s_tir=True)
def func(C: T.Buffer((160,), "float16")):
    with T.launch_thread("blockIdx.x", 2) as bx:
        w = T.launch_thread("threadIdx.y", 5)
        lane = T.launch_thread("threadIdx.x", 32)
        fragment = T.alloc_buffer((64,), "float16", scope="warp")
        T.attr("tvm_hopper", "hand_threaded", 1)
        if w * 32 + lane < 32:
            fragment[(w * 32 + lane) % 32 * 2] = C[w * 32 + lane]
        C[w * 32 + lane] = fragment[(w * 32 + lane) % 32 * 2 + 1]
"""


def test_threads_keep_their_numbers():
    check(run(parse(BEFORE), SplitWarpAxis()), parse(AFTER))


def test_again_finds_nothing():
    got = run(parse(BEFORE), SplitWarpAxis())
    assert plan_warps(got) == ()
    check(run(got, SplitWarpAxis()), got)


def stays(*changes):
    func = parse(BEFORE, *changes)
    return run(func, SplitWarpAxis()).same_as(func)


@pytest.mark.parametrize("threads", [16, 32, 48])
def test_one_warp_and_what_is_no_number_of_warps(threads):
    assert stays(('"threadIdx.x", 160', f'"threadIdx.x", {threads}'))


def test_no_buffer_of_a_warp():
    assert stays(('scope="warp"', 'scope="local"'))


def test_kernels_of_others_stay():
    assert stays(('T.attr("tvm_hopper", "hand_threaded", 1)', 'T.attr("other", "key", 1)'))
