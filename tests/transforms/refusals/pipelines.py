"""What is refused of loads and rings: places, addresses, and requests that nothing would serve."""

from tests.transforms.pipeline import test_plan_ring_buffers
from tests.transforms.pipeline.test_plan_ring_buffers import (
    ASK_PERSISTENT,
    K_LOOP,
    LOAD_B,
    LOAD_Q,
    NESTED,
    PLAIN_READER,
    SECOND,
    around_k,
)
from tests.transforms.refusals.case import on, rows
from tests.transforms.refusals.kernels import OUTSIDE_IF, ring, roles
from tests.transforms.scripts import deeper
from tvm_hopper.transforms import PlanRingBuffers, RejectUnloweredRequests, SpecializeWarps

LOOK = '                T.call_extern("int32", "look", q[0, tx % 8])\n'
PIPELINED = LOAD_B.replace("k * 32", 'T.Cast("int32", C[0])')
WRITES_C = "address that depends on C; need one that any thread may compute ahead of time"
ALL = (PlanRingBuffers, SpecializeWarps, RejectUnloweredRequests)

PIPELINES = [
    ring(
        "condition in a persistent kernel",
        r"copy load_a: found the condition bx < 2 around it in a persistent kernel "
        r"\(tvm_hopper.persistent\); need copies that every iteration makes",
        (K_LOOP, f"                if bx < 2:\n{deeper(K_LOOP)}"),
        ASK_PERSISTENT,
        PLAIN_READER,
    ),
    ring(
        "condition around a persistent kernel's threads",
        r"copy load_a: found the condition bx < 2 around it in a persistent kernel",
        ASK_PERSISTENT,
        (
            '        for tx in T.thread_binding(256, thread="threadIdx.x"):',
            '       if bx < 2:\n        for tx in T.thread_binding(256, thread="threadIdx.x"):',
        ),
    ),
    *rows(ring, OUTSIDE_IF=OUTSIDE_IF)("""
condition that threads decide differently
    + *OUTSIDE_IF
    if bx < 2: => if tx < 128:
    copy load_q: found the condition tx < 128 around it; need one that does not depend on tx: one
    thread copies for all; put the condition around what reads the tile
    """),
    ring(
        "copy in a loop without a number of iterations",
        r"copy load_a: found a copy inside of a While; need serial loops around copies, whose",
        (K_LOOP, f"                while acc[0] < T.float32(1):\n{deeper(K_LOOP)}"),
    ),
    ring(
        "address that the kernel writes",
        rf"copy load_b: found an {WRITES_C}: from loop variables, and from memory that the kernel "
        r"does not write; compute it in a kernel before this one",
        (LOAD_B, PIPELINED),
    ),
    ring(
        "variable from an address that the kernel writes",
        rf"copy load_b: found an {WRITES_C}",
        (
            LOAD_B,
            '                        at: T.let[T.int32] = T.Cast("int32", C[0])\n'
            + LOAD_B.replace("k * 32", "at"),
        ),
        ("[0, 0, 1]", "[0, 1, 0, 1]"),
        ("[0, 1, 2]", "[0, 1, 2, 3]"),
    ),
    ring(
        "address of a thread's own",
        r"copy load_b: found an address that depends on tx; need one that any thread may compute",
        (LOAD_B, LOAD_B.replace("k * 32", "tx")),
    ),
    ring(
        "two copies into one tile",
        r"copies load_b, load_b: found two copies into b; need one copy into each tile; give each",
        (LOAD_B, LOAD_B + LOAD_B),
        ("[0, 0, 1]", "[0, 0, 0, 1]"),
        ("[0, 1, 2]", "[0, 1, 2, 3]"),
    ),
    ring(
        "slots that are read before their copies",
        r"loop k, copy load_a: found uses of a that do not follow the copy in the loop; need "
        r"copies before all that touches their tiles, with 2 stages; move them there, or remove "
        r"software_pipeline_stage: with one slot order is the program's",
        (
            '                        with T.sblock("load_a"',
            '                        T.call_extern("int32", "look", a[0, 0, 0])\n'
            '                        with T.sblock("load_a"',
        ),
        ("[0, 0, 1]", "[1, 0, 0, 1]"),
        ("[0, 1, 2]", "[0, 1, 2, 3]"),
    ),
    ring(
        "copies that stand apart in a ring of several slots",
        r"loop k, copy load_a: found copies that stand apart in it: copies load_b; need copies",
        (LOAD_B, '                        T.call_extern("int32", "look", b[0, 0, 0])\n' + LOAD_B),
        ("[0, 0, 1]", "[0, 1, 0, 1]"),
        ("[0, 1, 2]", "[0, 1, 2, 3]"),
    ),
    roles(
        "uses of a slot before its copy",
        r"copy load_q: found uses of q before the copy, or outside of its loop; need uses "
        r"after the copy, in its loop: then the slot returns to the producer; move the copy",
        around_k(LOOK, LOAD_Q, K_LOOP),
    ),
    *rows(roles, SECOND=SECOND)("""
registers without roles
    async_stages=[0] => async_stages=[0], registers=[40, 232]
    async_op="wgmma" => other=1
    loop k, tvm_hopper.registers: found a loop without roles: its threads load and compute; need
    consumers next to a producer (tvm_hopper.consumers); request them, or remove the
pending groups without roles
    async_stages=[0] => async_stages=[0], wgmma_pending=1
    async_op="wgmma" => other=1
    loop k, tvm_hopper.wgmma_pending: found a loop without roles
pending groups of consumers that do not multiply
    async_stages=[0] => async_stages=[0], wgmma_pending=1
    async_stages=[0] => async_stages=[0], consumers=2
    async_op="wgmma" => other=1
    loop k, tvm_hopper.wgmma_pending: found groups left in flight by consumers of plain loops; need
    consumers that multiply: plain loads are complete when they return; remove
two loops that want other registers
    + SECOND
    [0, 0, 1] => [0, 0, 1], registers=[40, 232]
    [0, 0, 3] => [0, 0, 3], registers=[24, 240]
    loop k, tvm_hopper.registers: found [24, 240] next to [40, 232] of loop k; need one value: the
    roles are those of the whole kernel; write it on one of the loops alone
two loops that want other numbers of pending groups
    + SECOND
    [0, 0, 1] => [0, 0, 1], wgmma_pending=1
    [0, 0, 3] => [0, 0, 3], wgmma_pending=0
    loop k, tvm_hopper.wgmma_pending: found 0 next to 1 of loop k; need one value
    """),
    *rows(on(test_plan_ring_buffers.BEFORE, ALL), NESTED=NESTED)("""
request on a loop around the one that loads
    + NESTED
    range(3) => range(3, wgmma_pending=1)
    loop n, tvm_hopper.wgmma_pending: found an annotation outside of the kernel, or of the
    """),
]
