"""What is refused of equal shares of all tiles' steps."""

import functools

from tests.transforms.refusals.case import case, rows
from tests.transforms.tile_scheduling.test_stream_k import BEFORE, SHORT, noted
from tvm_hopper.transforms import ScheduleTiles

SCRIPT = functools.reduce(lambda text, change: text.replace(*change), SHORT, BEFORE)
HEAD, BODY = SCRIPT.split("    for by", 1)
IN_CLUSTERS = (
    HEAD
    + '    for bz in T.thread_binding(2, thread="blockIdx.z"):\n'
    + "".join(f"    {line}\n" for line in f"    for by{BODY}".splitlines())
)


def stream(name, match, *changes, script=SCRIPT, **notes):
    return case(name, script, (ScheduleTiles,), match, noted(**notes), *changes)


STREAM = [
    stream(
        "shares of no number of blocks",
        r"loop bx, tvm_hopper.stream: found no tvm_hopper.persistent; need a number of thread "
        r"blocks, which there is memory for; give tvm_hopper.persistent a number",
        persistent=None,
    ),
    stream(
        "shares of blocks that the device counts",
        r"loop bx, tvm_hopper.stream: found tvm_hopper.persistent counted by the device; need a "
        r"number",
        persistent=-1,
    ),
    stream(
        "shares of any number of tiles",
        r"loop bx, tvm_hopper.stream: found n \* 3 output tiles; need a number that is known",
        ("def func(", "def func(n: T.int32, "),
        ("T.thread_binding(2, ", "T.thread_binding(n, "),
    ),
    stream(
        "shares of consumers in turn",
        r"loop bx, tvm_hopper.stream: found tvm_hopper.turns=2; need consumers that share a tile",
        turns=2,
    ),
    stream(
        "shares of blocks of a cluster",
        r"loop bx, tvm_hopper.stream: found thread blocks on blockIdx.z, too; need blocks on "
        r"blockIdx.y and blockIdx.x alone",
        script=IN_CLUSTERS,
    ),
    *rows(stream)("""
shares without a producer
    "tvm_hopper.await_free" => "other"
    loop bx, tvm_hopper.stream: found a kernel without a producer; need a producer and consumers, as
    a product by WGMMA has them; request consumers on the pipelined loop
    """),
    stream(
        "shares next to other copies",
        r"loop bx, tvm_hopper.stream: found other asynchronous copies around the loop over steps, "
        r"or loops in loops; need one loop of a known number of steps, from 0",
        (
            "                                C[by * 3",
            '                                T.call_extern("int32", "tvm_hopper.free_slot", 0, i)\n'
            "                                C[by * 3",
        ),
    ),
    stream(
        "shares of any number of steps",
        r"loop bx, tvm_hopper.stream: found other asynchronous copies around the loop over steps, "
        r"or loops in loops; need one loop of a known number of steps",
        ("def func(", "def func(n: T.int32, "),
        ("T.serial(5)", "T.serial(n)"),
    ),
    *rows(stream)("""
shares of one step
    for k in T.serial(5): => if by >= 0:
    = k => = 0
    by, bx, k) => by, bx, 0)
    loop bx, tvm_hopper.stream: found no loop over steps; need one loop of a known number
shares of more steps than 32 bits number
    T.serial(5) => T.serial(500000000)
    loop bx, tvm_hopper.stream: found 4 thread blocks for 3000000000 steps; need at most 2147483647
    as the product of both, which 32 bits hold; take fewer thread blocks
shares of a sum in half precision
    acc = T.sblock_alloc_buffer((4,), => acc = T.sblock_alloc_buffer((4,), "float16",
    acc[i] = T.float32(0) => acc[i] = T.float16(0)
    acc[0] + ring => T.Cast("float32", acc[0]) + ring
    tx - 128] = acc[i] => tx - 128] = T.Cast("float32", acc[i])
    loop bx, tvm_hopper.stream: found sums of acc; need one product by WGMMA whose registers are
    """),
]
