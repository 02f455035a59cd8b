"""Calls of channels become mbarriers, and the whole way from loads to barriers."""

import pytest

from tests.transforms.pipeline.test_plan_ring_buffers import (
    ASK_PENDING,
    ASK_PERSISTENT,
    BEFORE,
    K_LOOP,
    NESTED,
    OUTSIDE,
    PLAIN_COPY,
    PLAIN_READER,
    SECOND,
    asking,
)
from tests.transforms.scripts import check, parse, run
from tests.transforms.warp_specialization.test_specialize_warps import LATE_RELEASE, ROLES, calls
from tvm_hopper import ir
from tvm_hopper.errors import LoweringError
from tvm_hopper.transforms import (
    ExpandPipeline,
    LowerChannelsToMbarriers,
    PlanRingBuffers,
    RejectUnloweredRequests,
    ScheduleTiles,
    SpecializeWarps,
)

CHAIN = (
    PlanRingBuffers,
    SpecializeWarps,
    ScheduleTiles,
    ExpandPipeline,
    LowerChannelsToMbarriers,
)
TMA = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"

# One stage is 2 x 64 x 64 x 2 + 16 x 32 x 4 = 18432 bytes. Two consumers: 384 threads.
AFTER = """
def func(A_map: T.handle("tensormap"), B_map: T.handle("tensormap"), C: T.Buffer((4,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(384, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:4]]):
                acc = T.sblock_alloc_buffer((4,), scope="local")
                a = T.sblock_alloc_buffer((2, 2, 64, 64), "float16", scope="shared.dyn", align=1024)
                b = T.sblock_alloc_buffer((2, 1, 16, 32), "float32", scope="shared.dyn", align=1024)
                full = T.sblock_alloc_buffer((2,), "uint64", scope="shared.dyn", align=8)
                empty = T.sblock_alloc_buffer((2,), "uint64", scope="shared.dyn", align=8)
                T.attr(T.int32(0), "tirx.launch_bounds_min_blocks_per_sm", 1)
                T.attr("tvm_hopper", "hand_threaded", 1)
                if tx == 0:
                    T.ptx.prefetch.tensormap(T.address_of(A_map))
                    T.ptx.prefetch.tensormap(T.address_of(B_map))
                    for slot in range(2):
                        T.ptx.mbarrier.init.shared.b64(T.address_of(full[slot]), T.uint32(1))
                        T.ptx.mbarrier.init.shared.b64(T.address_of(empty[slot]), T.uint32(2))
                    T.ptx.fence.mbarrier_init.release.cluster()
                T.tvm_storage_sync("shared")
                if tx < 128:
                    T.ptx["setmaxnreg.dec.sync.aligned.u32"](40)
                    if tx == 0:
                        for k in T.serial(8, disable_unroll=True):
                            T.cuda.mbarrier_wait(T.address_of(empty[k % 2]), (k // 2 + 1) % 2)
                            T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.address_of(full[k % 2]),
                                T.uint32(18432))
                            for panel in range(2):
                                T.ptx[TMA](T.address_of(a[k % 2, panel, 0, 0]),
                                    T.address_of(A_map), k * 128 + panel * 64, bx * 64,
                                    T.address_of(full[k % 2]))
                            T.ptx[TMA](T.address_of(b[k % 2, 0, 0, 0]), T.address_of(B_map),
                                k * 32, 0, T.address_of(full[k % 2]))
                else:
                    T.ptx["setmaxnreg.inc.sync.aligned.u32"](232)
                    for i in range(4):
                        acc[i] = T.float32(0)
                    for k in T.serial(8, disable_unroll=True):
                        T.cuda.mbarrier_wait(T.address_of(full[k % 2]), k // 2 % 2)
                        with T.sblock("mma", reads=[a[k % 2, 0:2, 0:64, 0:64],
                            b[k % 2, 0, 0:16, 0:32], acc[0:4]], writes=[acc[0:4]],
                            async_op="wgmma"):
                            T.call_extern("int32", "mma", acc[0], T.address_of(a[k % 2, 0, 0, 0]),
                                T.address_of(b[k % 2, 0, 0, 0]), (tx - 128) // 128, k)
                        with T.sblock("release", reads=[], writes=[]):
                            if (tx - 128) % 128 == 0:
                                T.ptx.mbarrier.arrive.shared.b64(T.address_of(empty[(k + 2) % 2]))
                    with T.sblock("store", reads=[acc[0:4]], writes=[C[0:4]]):
                        C[(tx - 128) % 4] = acc[0]
""".replace("[TMA]", f"[{TMA!r}]")

# Slots and parities count all iterations of a thread block, 8 a tile, and 12 tiles over 2 blocks.
TILE_LOOP = """\
for tile in T.serial(T.truncdiv(13 - bx, 2), disable_unroll=True):
    linear: T.let[T.int32] = tile * 2 + bx
    first: T.let[T.int32] = linear // 3
    inside: T.let[T.int32] = linear % 3
    tile_y: T.let[T.int32] = first
    tile_x: T.let[T.int32] = inside
"""


def persistent(text):
    """Put the loop over tiles around each role's work, and count on."""
    for old, new in (
        ("thread_binding(3,", "thread_binding(2,"),
        ("bx * 64", "tile_x * 64"),
        ("[k % 2", "[(8 * tile + k) % 2"),
        (" k // 2 % 2", " (8 * tile + k) // 2 % 2"),
        ("(k // 2 + 1) % 2", "((8 * tile + k) // 2 + 1) % 2"),
        ("empty[(k + 2) % 2]", "empty[(8 * tile + k + 2) % 2]"),
    ):
        assert old in text
        text = text.replace(old, new)
    lines, inside = [], 0
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        inside = inside if indent >= inside else 0
        if ("for k in" in line and indent == 24) or line.strip() == "for i in range(4):":
            lines += [" " * indent + first for first in TILE_LOOP.splitlines()]
            inside = indent
        lines.append("    " * bool(inside) + line)
    return "\n".join(lines)


def test_channels_become_barriers():
    """One that says full, and one that says empty, for each slot."""
    check(run(parse(ROLES), ScheduleTiles(), LowerChannelsToMbarriers()), parse(AFTER))


def lowered(*changes):
    """Run the passes from loads to barriers."""
    return run(parse(BEFORE, *changes), *(make() for make in CHAIN))


def test_from_loads_to_barriers():
    check(lowered(), parse(AFTER))


def test_from_loads_to_barriers_with_a_pending_group():
    late = (
        ("if (tx - 128) % 128 == 0:", "if (tx - 128) % 128 == 0 and k >= 1:"),
        ("empty[(k + 2) % 2]", "empty[(k - 1 + 2) % 2]"),
    )
    check(lowered(ASK_PENDING), parse(AFTER, *late))
    check(
        run(parse(ROLES, *LATE_RELEASE), ScheduleTiles(), LowerChannelsToMbarriers()),
        parse(AFTER, *late),
    )


def test_from_loads_to_barriers_of_a_persistent_kernel():
    check(lowered(ASK_PERSISTENT), parse(persistent(AFTER)))


# -- without roles: `full` alone, and an elected thread

TOGETHER = """
def func(A_map: T.handle("tensormap"), C: T.Buffer((64,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:64]], kernel=1):
                ring = T.sblock_alloc_buffer((4, 1, 64), "float32", scope="shared.dyn", align=128)
                for k in range(8):
                    trip: T.let[T.int32] = k
                    with T.sblock("load", reads=[], writes=[ring[trip % 4, 0, 0:64]],
                        async_op="tma_load", channel=0):
                        T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                        T.call_extern("int32", "tvm_hopper.tma_load",
                            T.address_of(ring[trip % 4, 0, 0]), T.address_of(A_map), k, bx)
                    T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)
                    C[tx] = C[tx] + ring[trip % 4, 0, tx]
"""

ELECTED = """
def func(A_map: T.handle("tensormap"), C: T.Buffer((64,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(64, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:64]]):
                ring = T.sblock_alloc_buffer((4, 1, 64), "float32", scope="shared.dyn", align=128)
                full = T.sblock_alloc_buffer((4,), "uint64", scope="shared.dyn", align=8)
                if tx == 0:
                    T.ptx.prefetch.tensormap(T.address_of(A_map))
                    for slot in range(4):
                        T.ptx.mbarrier.init.shared.b64(T.address_of(full[slot]), T.uint32(1))
                    T.ptx.fence.mbarrier_init.release.cluster()
                T.tvm_storage_sync("shared")
                for k in range(8):
                    if tx == 0:
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.address_of(full[k % 4]),
                            T.uint32(256))
                        T.ptx[TMA](T.address_of(ring[k % 4, 0, 0]), T.address_of(A_map), k, bx,
                            T.address_of(full[k % 4]))
                    T.cuda.mbarrier_wait(T.address_of(full[k % 4]), k // 4 % 2)
                    C[tx] = C[tx] + ring[k % 4, 0, tx]
""".replace("[TMA]", f"[{TMA!r}]")


def test_without_roles_the_first_thread_loads():
    check(run(parse(TOGETHER), LowerChannelsToMbarriers()), parse(ELECTED))


AHEAD = ("channel=0", "channel=0, ahead=[0, 1]")


@pytest.mark.parametrize(
    ("threads", "who"),
    [
        (64, ["tx < 32", "T.cuda.elect_sync() == T.uint32(1)"]),
        (32, ["T.cuda.elect_sync() == T.uint32(1)"]),
        (16, ["tx == 0"]),
    ],
)
def test_in_front_of_a_loop_a_lane_is_elected(threads, who):
    """Of a whole warp."""
    got = run(
        parse(TOGETHER, ("(64, thread", f"({threads}, thread"), AHEAD), LowerChannelsToMbarriers()
    )
    assert conditions(got) == ["tx == 0", *who]


def test_what_the_first_thread_did_alone_it_goes_on_with():
    work = "C[tx] = C[tx] + ring[trip % 4, 0, tx]"
    alone = f"{work}\n                    if tx == 0:\n                        C[0] = C[0] + 1.0"
    got = run(parse(TOGETHER, (work, alone), AHEAD), LowerChannelsToMbarriers())
    assert conditions(got) == ["tx == 0"] * 3


def conditions(func):
    """Return what branches ask, in order."""
    return [str(x.condition) for x in ir.find_all(func.body, ir.IfThenElse)]


# -- kernels of other shapes


def barriers(func):
    """Return the barriers of a kernel and their numbers of slots."""
    (kernel,) = ir.find_all(func.body, ir.SBlock, lambda x: x.name_hint == ir.KERNEL_BLOCK)
    found = {x.name: int(x.shape[0]) for x in kernel.alloc_buffers if ir.dtype_of(x) == "uint64"}
    assert not calls(func.body)
    assert not ir.find_all(func.body, ir.SBlock, lambda x: "tvm_hopper.channel" in x.annotations)
    return found


def test_each_channel_has_barriers_of_its_own():
    two = {"full": 2, "empty": 2, "full_1": 4, "empty_1": 4}
    assert barriers(lowered(SECOND)) == two
    assert barriers(lowered(SECOND, PLAIN_READER)) == {"full": 2, "full_1": 4}


def test_a_load_outside_of_loops_has_a_barrier_for_its_slot():
    assert barriers(lowered(*OUTSIDE)) == {"full": 1, "empty": 1, "full_1": 2, "empty_1": 2}
    assert barriers(lowered(*OUTSIDE, PLAIN_READER)) == {"full": 1, "full_1": 2}


def test_loads_in_nested_loops_share_barriers():
    assert barriers(lowered(NESTED)) == {"full": 2, "empty": 2}
    assert barriers(lowered(NESTED, PLAIN_READER)) == {"full": 2}


def test_a_loop_between_the_threads_and_the_accumulator_is_no_obstacle():
    axis = '(256, thread="threadIdx.x"):\n'
    between = (axis, f"{axis}          for n in range(2):\n")
    assert barriers(lowered(between)) == {"full": 2, "empty": 2}
    assert barriers(lowered(between, PLAIN_READER)) == {"full": 2}


def test_loads_of_two_loops_may_have_the_same_names():
    got = lowered((K_LOOP, K_LOOP + K_LOOP))
    assert barriers(got) == {"full": 2, "empty": 2, "full_1": 2, "empty_1": 2}


def test_another_statement_in_the_loop_is_no_obstacle():
    assert barriers(lowered(*PLAIN_COPY)) == {"full": 2, "empty": 2}
    assert barriers(lowered(*PLAIN_COPY, PLAIN_READER)) == {"full": 2}


# -- programs of other kinds


def test_a_block_of_the_program_may_have_our_block_s_name():
    lowered(PLAIN_READER, ('"store"', '"kernel"'))


@pytest.mark.parametrize(
    "note",
    ["registers=[40, 232]", "wgmma_pending=1", "wgmma_pending=1, consumers=2"],
)
def test_an_annotation_that_nothing_acts_on_is_refused(note):
    with pytest.raises(LoweringError):
        run(lowered(asking(note), PLAIN_READER), RejectUnloweredRequests())
