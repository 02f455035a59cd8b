"""InsertAsyncWaits: fence and commit around WGMMA, a wait before each use of what is in flight."""

import tvm
from tvm.script import tirx as T

from tests.transforms.scripts import check, parse, run
from tvm_hopper import ir
from tvm_hopper.transforms.insert_async_waits import InsertAsyncWaits, plan_waits

# `mma` and `arrive` stand for the instructions that the passes before this one have left.
ROLES = """
@T.prim_func(private=True, s_tir=True)
def func(C: T.Buffer((4,), "float32")):
    for tx in T.thread_binding(256, thread="threadIdx.x"):
        with T.sblock("kernel"):
            T.reads()
            T.writes()
            acc = T.sblock_alloc_buffer((4,), scope="local")
            if tx < 128:
                T.call_extern("int32", "produce")
            else:
                for i in range(4):
                    acc[i] = T.float32(0)
                for k in range(8):
                    T.call_extern("int32", "wait_full", k)
                    with T.sblock("mma"):
                        T.reads(acc[0:4])
                        T.writes(acc[0:4])
                        T.sblock_attr({"tvm_hopper.async_op": "wgmma"})
                        T.call_extern("int32", "mma", acc[0], k)
                    with T.sblock("release"):
                        T.reads()
                        T.writes()
                        T.sblock_attr({"tvm_hopper.release": 0})
                        T.call_extern("int32", "arrive", k)
                with T.sblock("store"):
                    T.reads(acc[0:4])
                    T.writes(C[0:4])
                    C[0] = acc[0]
"""

WAITED = """
@T.prim_func(private=True, s_tir=True)
def func(C: T.Buffer((4,), "float32")):
    for tx in T.thread_binding(256, thread="threadIdx.x"):
        with T.sblock("kernel"):
            T.reads()
            T.writes()
            acc = T.sblock_alloc_buffer((4,), scope="local")
            if tx < 128:
                T.call_extern("int32", "produce")
            else:
                for i in range(4):
                    acc[i] = T.float32(0)
                for k in range(8):
                    T.call_extern("int32", "wait_full", k)
                    T.ptx.wgmma.fence.sync.aligned()
                    with T.sblock("mma"):
                        T.reads(acc[0:4])
                        T.writes(acc[0:4])
                        T.call_extern("int32", "mma", acc[0], k)
                    T.ptx.wgmma.commit_group.sync.aligned()
                    T.ptx.wgmma.wait_group.sync.aligned(0)
                    with T.sblock("release"):
                        T.reads()
                        T.writes()
                        T.call_extern("int32", "arrive", k)
                with T.sblock("store"):
                    T.reads(acc[0:4])
                    T.writes(C[0:4])
                    C[0] = acc[0]
"""

PENDING = ('"tvm_hopper.release": 0', '"tvm_hopper.release": 1')
# one group may stay in flight over an iteration, none over the read of the accumulator
WAITED_PENDING = (
    ("wgmma.wait_group.sync.aligned(0)", "wgmma.wait_group.sync.aligned(1)"),
    (
        '                with T.sblock("store"):',
        "                T.ptx.wgmma.wait_group.sync.aligned(0)\n"
        '                T.call_intrin("void", "tirx.tvm_hopper_code_fence")\n'
        '                for i in T.serial(4, annotations={"pragma_unroll": 4}):\n'
        '                    T.call_intrin("void", "tirx.tvm_hopper_hold_float32", acc[i])\n'
        '                with T.sblock("store"):',
    ),
)


def test_a_release_of_this_iteration_s_slot_waits_for_all():
    check(run(parse(ROLES), InsertAsyncWaits()), parse(WAITED))


def test_a_release_of_the_last_iteration_s_slot_leaves_one_group_in_flight():
    check(run(parse(ROLES, PENDING), InsertAsyncWaits()), parse(WAITED, *WAITED_PENDING))


def test_what_nothing_reads_is_waited_for_at_the_end():
    unread = (
        ("C[0] = acc[0]", "C[0] = T.float32(1)"),
        (
            "T.reads(acc[0:4])\n                    T.writes(C",
            "T.reads()\n                    T.writes(C",
        ),
    )
    drained = (
        WAITED_PENDING[0],
        (
            "                    C[0] = acc[0]\n",
            "                    C[0] = T.float32(1)\n"
            "                T.ptx.wgmma.wait_group.sync.aligned(0)\n",
        ),
        unread[1],
    )
    check(run(parse(ROLES, PENDING, *unread), InsertAsyncWaits()), parse(WAITED, *drained))


def test_statements_that_touch_nothing_in_flight_come_before_the_wait():
    between = '                with T.sblock("store"):'
    free = f'                T.call_extern("int32", "other")\n{between}'
    got = run(parse(ROLES, PENDING, (between, free)), InsertAsyncWaits())
    *waits, store = WAITED_PENDING[1][1].split("\n")
    wait = "\n".join(waits)
    want = parse(
        WAITED,
        WAITED_PENDING[0],
        (between, f'                T.call_extern("int32", "other")\n{wait}\n{store}'),
    )
    check(got, want)


def test_again_finds_nothing():
    got = run(parse(ROLES), InsertAsyncWaits())
    (kernel,) = ir.kernels(got)
    assert plan_waits(kernel) == ()
    check(run(got, InsertAsyncWaits()), parse(WAITED))


def test_other_kernel_stays():
    @T.prim_func(private=True, s_tir=True)
    def other(X: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(64, thread="blockIdx.x"):
            with T.sblock("init"):
                X[bx] = T.float32(0)

    ours = parse(ROLES)
    both = ours.with_body(ir.seq(other.body.block.body, ours.body.block.body))
    got = run(both, InsertAsyncWaits())
    first, second = ir.kernels(got)
    assert first.same_as(ir.kernels(both)[0])
    tvm.ir.assert_structural_equal(second, ir.kernels(parse(WAITED))[0], map_free_vars=True)
