"""A producer whose threads copy by cp.async, beside TMA: from one pass to the next."""

import pytest

from tests.transforms.scripts import check, deeper, nest, notes_of, parse, run
from tests.transforms.warp_specialization.test_specialize_warps import calls, roles
from tvm_hopper import ir
from tvm_hopper.facts.arch import SM_80, SM_90A
from tvm_hopper.transforms import (
    LowerChannelsToMbarriers,
    PlanRingBuffers,
    ScheduleTiles,
    SpecializeWarps,
)
from tvm_hopper.transforms.common.channel import Channel, find_channels
from tvm_hopper.transforms.common.explain_notes import ArrivalsNote, RingNote
from tvm_hopper.transforms.common.load_sites import hands_over

# What LowerAsyncCopies leaves: chunks for threads to share out, and a box; 128 threads read
# both.
BEFORE = """
def func(A: T.Buffer((40, 64), "float16"), B_map: T.handle("tensormap"),
    C: T.Buffer((128,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("", reads=[], writes=[C[0:128]]):
                for k in range(5, stage=[0, 0, 1], order=[0, 1, 2], async_stages=[0], consumers=1):
                    with T.sblock("", reads=[], writes=[]):
                        a = T.sblock_alloc_buffer((8, 64), "float16", scope="shared.dyn")
                        b = T.sblock_alloc_buffer((1, 128), "float32", scope="shared.dyn",
                            align=128)
                        with T.sblock("load_a", reads=[A[0:40, 0:64]], writes=[a[0:8, 0:64]],
                            async_op="cp_async"):
                            for chunk in T.serial(64, shared_out=1):
                                T.call_extern("int32", "tvm_hopper.cp_async",
                                    T.address_of(a[chunk // 8, chunk % 8 * 8]),
                                    T.address_of(A[k * 8 + chunk // 8, chunk % 8 * 8]), 16, 16)
                        with T.sblock("load_b", reads=[], writes=[b[0, 0:128]],
                            async_op="tma_load"):
                            T.call_extern("int32", "tvm_hopper.tma_load", T.address_of(b[0, 0]),
                                T.address_of(B_map), 0, k)
                        C[tx] = C[tx] + b[0, tx] + T.Cast("float32", a[tx // 64, tx % 64])
"""

PLANNED = """
def func(A: T.Buffer((40, 64), "float16"), B_map: T.handle("tensormap"),
    C: T.Buffer((128,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:128]], kernel=1):
                a = T.sblock_alloc_buffer((2, 8, 64), "float16", scope="shared.dyn")
                b = T.sblock_alloc_buffer((2, 1, 128), "float32", scope="shared.dyn", align=128)
                with T.sblock("tile", reads=[], writes=[], tile_work=1):
                    for k in T.serial(5, disable_unroll=True, consumers=1, num_slots=2):
                        trip: T.let[T.int32] = k
                        with T.sblock("load_b", reads=[], writes=[b[trip % 2, 0, 0:128]],
                            async_op="tma_load", channel=0):
                            T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                            T.call_extern("int32", "tvm_hopper.tma_load",
                                T.address_of(b[trip % 2, 0, 0]), T.address_of(B_map), 0, k)
                        with T.sblock("load_a", reads=[A[0:40, 0:64]],
                            writes=[a[trip % 2, 0:8, 0:64]], async_op="cp_async_arrive", channel=0,
                            in_parts=1):
                            T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                            for chunk in T.serial(64, shared_out=1):
                                T.call_extern("int32", "tvm_hopper.cp_async",
                                    T.address_of(a[trip % 2, chunk // 8, chunk % 8 * 8]),
                                    T.address_of(A[k * 8 + chunk // 8, chunk % 8 * 8]), 16, 16)
                        C[tx] = (C[tx] + b[trip % 2, 0, tx] + T.Cast("float32",
                            a[trip % 2, tx // 64, tx % 64]))
"""

ROLES = """
def func(A: T.Buffer((40, 64), "float16"), B_map: T.handle("tensormap"),
    C: T.Buffer((128,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(160, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:128]], kernel=1):
                a = T.sblock_alloc_buffer((2, 8, 64), "float16", scope="shared.dyn")
                b = T.sblock_alloc_buffer((2, 1, 128), "float32", scope="shared.dyn", align=128)
                T.attr("tvm_hopper", "hand_threaded", 1)
                if tx < 32:
                    with T.sblock("tile", reads=[], writes=[], tile_work=1):
                        for k in T.serial(5, disable_unroll=True):
                            trip: T.let[T.int32] = k
                            T.call_extern("int32", "tvm_hopper.await_free", 0, trip)
                            if tx == 0:
                                with T.sblock("load_b", reads=[], writes=[b[trip % 2, 0, 0:128]],
                                    async_op="tma_load", channel=0):
                                    T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                                    T.call_extern("int32", "tvm_hopper.tma_load",
                                        T.address_of(b[trip % 2, 0, 0]), T.address_of(B_map), 0, k)
                            with T.sblock("load_a", reads=[A[0:40, 0:64]],
                                writes=[a[trip % 2, 0:8, 0:64]], async_op="cp_async_arrive",
                                channel=0, in_parts=1):
                                T.call_extern("int32", "tvm_hopper.fill_slot", 0, trip)
                                for chunk in T.serial(64, shared_out=1):
                                    T.call_extern("int32", "tvm_hopper.cp_async",
                                        T.address_of(a[trip % 2, chunk // 8, chunk % 8 * 8]),
                                        T.address_of(A[k * 8 + chunk // 8, chunk % 8 * 8]), 16, 16)
                else:
                    with T.sblock("tile", reads=[], writes=[], tile_work=1):
                        for k in T.serial(5, disable_unroll=True):
                            trip: T.let[T.int32] = k
                            T.call_extern("int32", "tvm_hopper.await_filled", 0, trip)
                            C[tx - 32] = (C[tx - 32] + b[trip % 2, 0, tx - 32] + T.Cast("float32",
                                a[trip % 2, (tx - 32) // 64, (tx - 32) % 64]))
                            with T.sblock("release", reads=[], writes=[], release=[0, 4]):
                                T.cuda.warp_sync()
                                if (tx - 32) % 32 == 0:
                                    T.call_extern("int32", "tvm_hopper.free_slot", 0, trip)
"""

TMA = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
AFTER = """
def func(A: T.Buffer((40, 64), "float16"), B_map: T.handle("tensormap"),
    C: T.Buffer((128,), "float32")):
    for bx in T.thread_binding(3, thread="blockIdx.x"):
        for tx in T.thread_binding(160, thread="threadIdx.x"):
            with T.sblock("kernel", reads=[], writes=[C[0:128]]):
                a = T.sblock_alloc_buffer((2, 8, 64), "float16", scope="shared.dyn")
                b = T.sblock_alloc_buffer((2, 1, 128), "float32", scope="shared.dyn", align=128)
                full = T.sblock_alloc_buffer((2,), "uint64", scope="shared.dyn", align=8)
                empty = T.sblock_alloc_buffer((2,), "uint64", scope="shared.dyn", align=8)
                T.attr("tvm_hopper", "hand_threaded", 1)
                if tx == 0:
                    T.ptx.prefetch.tensormap(T.address_of(B_map))
                    for slot in range(2):
                        T.ptx.mbarrier.init.shared.b64(T.address_of(full[slot]), T.uint32(33))
                        T.ptx.mbarrier.init.shared.b64(T.address_of(empty[slot]), T.uint32(4))
                    T.ptx.fence.mbarrier_init.release.cluster()
                T.tvm_storage_sync("shared")
                if tx < 32:
                    for k in T.serial(5, disable_unroll=True):
                        T.cuda.mbarrier_wait(T.address_of(empty[k % 2]), (k // 2 + 1) % 2)
                        if tx == 0:
                            T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.address_of(full[k % 2]),
                                T.uint32(512))
                            T.ptx[TMA](T.address_of(b[k % 2, 0, 0]), T.address_of(B_map), 0, k,
                                T.address_of(full[k % 2]))
                        for turn in range(2):
                            T.ptx["cp.async.cg.shared.global"](T.address_of(a[k % 2,
                                turn * 4 + tx // 8, tx % 8 * 8]),
                                T.address_of(A[k * 8 + turn * 4 + tx // 8, tx % 8 * 8]), 16)
                        T.ptx["cp.async.mbarrier.arrive.noinc.shared.b64"](
                            T.address_of(full[k % 2])
                        )
                else:
                    for k in T.serial(5, disable_unroll=True):
                        T.cuda.mbarrier_wait(T.address_of(full[k % 2]), k // 2 % 2)
                        C[tx - 32] = (C[tx - 32] + b[k % 2, 0, tx - 32] + T.Cast("float32",
                            a[k % 2, (tx - 32) // 64, (tx - 32) % 64]))
                        with T.sblock("release", reads=[], writes=[]):
                            T.cuda.warp_sync()
                            if (tx - 32) % 32 == 0:
                                T.ptx.mbarrier.arrive.shared.b64(T.address_of(empty[(k + 2) % 2]))
""".replace("[TMA]", f"[{TMA!r}]")

K_LOOP = nest(BEFORE, "for k in")
ALONE = (", consumers=1", "")
BY_CHUNKS = nest(K_LOOP, "for chunk")
BY_BOX = """\
                            T.call_extern("int32", "tvm_hopper.tma_load", T.address_of(a[0, 0]),
                                T.address_of(B_map), 0, k)
"""


def test_loads_of_one_trip_share_a_channel_whoever_makes_them():
    """What one thread issues is one block of it, and what threads make in parts another one."""
    check(run(parse(BEFORE), PlanRingBuffers()), parse(PLANNED))


def test_threads_of_the_producer_wait_and_copy_and_one_issues_the_box():
    check(run(parse(PLANNED), SpecializeWarps()), parse(ROLES))


def test_each_of_them_arrives_once_its_copies_have_landed():
    check(run(parse(ROLES), ScheduleTiles(), LowerChannelsToMbarriers()), parse(AFTER))


def test_passes_that_are_run_again_find_nothing():
    planned = run(parse(BEFORE), PlanRingBuffers())
    check(run(planned, PlanRingBuffers()), parse(PLANNED))
    check(run(parse(ROLES), SpecializeWarps()), parse(ROLES))


def test_arrivals_are_those_of_the_threads_and_of_the_one_that_expects_bytes():
    """Before roles are made every thread of the kernel would copy."""
    channel = Channel(0, 2, 512, 4, num_copying=32)
    assert find_channels(parse(ROLES).body) == [channel]
    assert channel.full_count == 33
    (planned,) = find_channels(ir.kernels(parse(PLANNED))[0])
    assert (planned.num_copying, planned.full_count) == (128, 129)
    assert Channel(0, 2, 0, 4, num_copying=32).full_count == 32


def test_a_loop_that_loads_in_parts_beside_one_that_does_not():
    """The thread that issues boxes waits for their slots alone."""
    boxes = K_LOOP.replace(BY_CHUNKS, BY_BOX).replace('"cp_async"', '"tma_load"')
    got = run(parse(BEFORE, (K_LOOP, K_LOOP + boxes)), PlanRingBuffers(), SpecializeWarps())
    producer, _ = roles(got)
    assert calls(producer) == "await_free 0, fill_slot 0, fill_slot 0, await_free 1, fill_slot 1"
    elected = ir.find_all(producer, ir.IfThenElse)
    assert [calls(x) for x in elected] == ["fill_slot 0", "await_free 1, fill_slot 1"]


def test_without_roles_copies_complete_in_groups_and_boxes_on_barriers():
    got = run(parse(BEFORE, ALONE), PlanRingBuffers())
    assert [(x.number, x.by_group) for x in find_channels(got.body)] == [(0, True), (1, False)]
    assert "cp_async_arrive" not in got.script()


@pytest.mark.parametrize(
    ("changes", "arch", "want"),
    [
        ((), SM_90A, True),
        ((ALONE,), SM_90A, False),
        ((), SM_80, False),  # no barriers that such copies arrive at
    ],
)
def test_who_waits_for_loads_is_known_before_there_are_roles(changes, arch, want):
    (kernel,) = ir.kernels(parse(BEFORE, *changes))
    assert hands_over(kernel, arch) == want


def test_a_loop_around_others_does_not_ask_for_them():
    """Warp groups multiply beside the loop that loads, what nothing loads."""
    mma = """                    with T.sblock("mma", reads=[], writes=[], async_op="wgmma"):
                        T.call_extern("int32", "mma")
"""
    outer = "                for n in range(2):\n" + deeper(K_LOOP) + mma
    (kernel,) = ir.kernels(parse(BEFORE, ALONE, (K_LOOP.replace(*ALONE), outer.replace(*ALONE))))
    assert not hands_over(kernel, SM_90A)


def test_what_is_told_of_the_ring():
    """1024 of 1536 bytes are brought by threads: the barrier counts the other 512."""
    got = run(parse(BEFORE), PlanRingBuffers(), SpecializeWarps())
    assert [x for x in notes_of(got) if isinstance(x, (RingNote, ArrivalsNote))] == [
        RingNote(channel=0, num_slots=2, tx_bytes=1536, bytes_in_parts=1024),
        ArrivalsNote(channel=0, full=33, empty=4),
    ]
