"""What InsertSyncs refuses; the messages of the sync engine are all in test_insert_syncs.py."""

from tests.transforms.refusals.case import case, on, rows
from tests.transforms.scripts import deeper
from tests.transforms.sync.test_insert_syncs import ALONE, ROLES
from tvm_hopper.transforms import InsertSyncs

SIGNATURE = 'def func(A_map: T.handle("tensormap"), C: T.Buffer((4,), "float32"), n: T.int32):\n'

OUT = """\
            with T.sblock("out", reads=[tile[0:64]], writes=[C[0:64]], async_op="tma_store"):
                T.call_extern("int32", "store", T.address_of(tile[{}]))
"""

SYNCS = [
    case(
        "operation that the chip does not execute",
        ROLES,
        (InsertSyncs,),
        r"block load: found operation tma_load on sm_80; need one that it executes: cp_async; "
        r"build for sm_90a$",
        (
            SIGNATURE,
            SIGNATURE
            + '    T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_80"})})\n',
        ),
    ),
    *rows(on(ROLES, (InsertSyncs,)))("""
operation that is none
    async_op="wgmma" => async_op="mma"
    block mma: found operation mma on sm_90a; need one that it executes: cp_async, cp_async_arrive,
    bulk_load, tma_load, tma_store, bulk_store, tma_reduce, bulk_reduce, wgmma$
    """),
    case(
        "store to a tile that copies run ahead into",
        ALONE,
        (InsertSyncs,),
        r"block use: found a write of 'ring', whose copies are made only if they are read; need ",
        ("C[tx] = C[tx] + ring", "ring[trip % 2, tx] = C[tx] + ring"),
    ),
    case(
        "a store that some threads would make",
        ALONE,
        (InsertSyncs,),
        r"block out: found tma_store under a condition that differs between threads; need one that "
        r"is the same in all threads: one of them stores the whole tile; bound the block itself "
        r"\(T.where\), or put the condition around what fills the tile",
        (
            "            for k in T.serial(8",
            f"            if tx > 7:\n{deeper(OUT.format(0))}            for k in T.serial(8",
        ),
    ),
    case(
        "a store of which each thread has its own",
        ALONE,
        (InsertSyncs,),
        r"block out: found a separate copy in each thread; need one that the 128 threads "
        r"of a warp group make together: one of them stores the whole part; store at the loop over",
        ("            for k in T.serial(8", OUT.format("tx") + "            for k in T.serial(8"),
    ),
    case(
        "stores of warp groups next to one of all threads",
        ALONE,
        (InsertSyncs,),
        r"out, out: found copies of a warp group's part next to copies that all threads make "
        r"together; need one or the other: groups of stores are waited for by the thread that",
        (
            "            for k in T.serial(8",
            OUT.format("tx // 128") + OUT.format("0") + "            for k in T.serial(8",
        ),
    ),
    case(
        "operation that the producer issues",
        ROLES,
        (InsertSyncs,),
        r"block early: found an asynchronous operation outside of the consumers' role; need one "
        r"next to the readers of its results: .*; move it into the loop of the consumers",
        (
            "                if tx == 0:\n",
            '                with T.sblock("early", async_op="wgmma"):\n'
            '                    T.call_extern("int32", "mma", acc[0])\n'
            "                if tx == 0:\n",
        ),
    ),
]
