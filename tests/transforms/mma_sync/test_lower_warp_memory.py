"""LowerWarpMemory: threadIdx.x is a warp, whose lanes get parts of its buffers."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.mma_sync.lower_warp_memory import (
    LowerWarpMemory,
    plan_lanes,
    plan_warps,
    split_warps,
)

HEAD = """
def func(A: T.Buffer((512,), "float16"), C: T.Buffer((8192,), "float32")):
    with T.launch_thread("blockIdx.x", 2) as bx:
        w = T.launch_thread("threadIdx.y", 5)
        lane = T.launch_thread("threadIdx.x", 32)
"""
MMA = 'T.ptx_legacy.mma("m16n8k16", "row", "col", "fp16", "fp16", "fp32"'
LDMATRIX = 'T.ptx_legacy.ldmatrix(T.bool(False), 4, ".b16"'
STORE = (
    'T.cuda.mma_store_legacy(16, 16, T.tvm_access_ptr(T.type_annotation("float32"), C.data, '
    "i * 256, 256, 2)"
)
BEFORE = f"""{HEAD}
        a = T.alloc_buffer((512,), "float16", scope="warp")
        c = T.alloc_buffer((1024,), "float32", scope="warp")
        T.attr("tvm_hopper", "hand_threaded", 1)
        for i in range(4):
            T.cuda.mma_fill_legacy(8, c.data, i * 256, dtype="float32")
        for i in range(2):
            {LDMATRIX}, a.data, i * 256 + lane * 8, A.data, lane * 8)
        for i, j in T.grid(2, 2):
            {MMA}, a.data, i * 256 + (w * 32 + lane) % 32 * 8, a.data, j * 256 + lane * 8 + 4,
                c.data, i * 512 + j * 256 + lane * 8, T.bool(False))
        for i in range(4):
            {STORE}, c.data, i * 256, 16, dtype="float32")
        for x in range(8):
            c[768 + lane * 8 + x] = c[256 + lane * 8 + x] + T.float32(1)
"""
AFTER = f"""{HEAD}
        a = T.alloc_buffer((16,), "float16", scope="local")
        c = T.alloc_buffer((32,), "float32", scope="local")
        T.attr("tvm_hopper", "hand_threaded", 1)
        for i in range(4):
            T.cuda.mma_fill_legacy(8, c.data, i * 8, dtype="float32")
        for i in range(2):
            {LDMATRIX}, a.data, i * 8, A.data, lane * 8)
        for i, j in T.grid(2, 2):
            {MMA}, a.data, i * 8, a.data, j * 8 + 4, c.data, i * 16 + j * 8, T.bool(False))
        for i in range(4):
            {STORE}, c.data, i * 8, 16, dtype="float32")
        for x in range(8):
            c[x + 24] = c[x + 8] + T.float32(1)
"""


def test_every_kind_of_access():
    check(run(parse(BEFORE), LowerWarpMemory()), parse(AFTER))


# What is left to TVM: `a` goes to registers in each of these all the same.
LEFT = {
    "another lane's elements": ("c[256 + lane * 8 + x]", "c[256 + (lane + 1) % 32 * 8 + x]"),
    "a mirrored lane": ("c[256 + lane * 8 + x]", "c[504 - lane * 8 + x]"),
    "elements of the next lane": ("for x in range(8)", "for x in range(9)"),
    "another number for each lane": ("c[768 + lane * 8 + x]", "c[768 + lane * 4 + x]"),
    "a part of a row": ('(1024,), "float32"', '(1000,), "float32"'),
    "an address": ("T.float32(1)", 'T.call_extern("float32", "f", T.address_of(c[lane * 8]))'),
    "a call that nobody knows": ("T.float32(1)", 'T.call_extern("float32", "f", c.data)'),
}


@pytest.mark.parametrize("what", LEFT)
def test_left_to_tvm(what):
    func = parse(BEFORE, LEFT[what])
    assert [plan.buffer.name for plan in plan_lanes(func)] == ["a"]


@pytest.mark.parametrize(
    "change",
    [
        ('"threadIdx.x", 32', '"threadIdx.x", 48'),
        ('T.attr("tvm_hopper", "hand_threaded", 1)', 'T.attr("other", "key", 1)'),
    ],
    ids=["threadIdx.x is no warp", "kernel of others"],
)
def test_kernels_that_stay(change):
    func = parse(BEFORE, change)
    assert run(func, LowerWarpMemory()).same_as(func)


UNSPLIT = """
def func(C: T.Buffer((160,), "float16")):
    with T.launch_thread("blockIdx.x", 2) as bx:
        t = T.launch_thread("threadIdx.x", 160)
        fragment = T.alloc_buffer((64,), "float16", scope="warp")
        T.attr("tvm_hopper", "hand_threaded", 1)
        if t < 32:
            fragment[t % 32 * 2] = C[t]
        C[t] = fragment[t % 32 * 2 + 1]
"""
SPLIT = """
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
    check(run(parse(UNSPLIT), split_warps), parse(SPLIT))


def test_no_axis_is_split_twice():
    got = run(parse(UNSPLIT), split_warps)
    assert plan_warps(got) == ()
    check(run(got, split_warps), got)


def stays(*changes):
    func = parse(UNSPLIT, *changes)
    return run(func, split_warps).same_as(func)


@pytest.mark.parametrize("threads", [16, 32, 48])
def test_one_warp_and_what_is_no_number_of_warps(threads):
    assert stays(('"threadIdx.x", 160', f'"threadIdx.x", {threads}'))


def test_no_buffer_of_a_warp():
    assert stays(('scope="warp"', 'scope="local"'))


def test_axes_of_other_kernels_stay():
    assert stays(('T.attr("tvm_hopper", "hand_threaded", 1)', 'T.attr("other", "key", 1)'))
