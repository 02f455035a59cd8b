"""What InsertSyncs refuses; the messages of the sync engine are all in test_insert_syncs.py."""

from tests.transforms.refusals.case import case
from tests.transforms.test_insert_syncs import ALONE, ROLES
from tvm_hopper.transforms import InsertSyncs

SYNCS = [
    case(
        "store to a tile that copies run ahead into",
        ALONE,
        (InsertSyncs,),
        r"block use: found a write of 'ring', whose copies are made only if they are read; need ",
        ("C[tx] = C[tx] + ring", "ring[trip % 2, tx] = C[tx] + ring"),
    ),
    case(
        "operation that the producer issues",
        ROLES,
        (InsertSyncs,),
        r"block early: found an asynchronous operation outside of the consumers' role; need one "
        r"beside what reads its results: .*; move it into the loop of the consumers",
        (
            "                if tx == 0:\n",
            '                with T.sblock("early"):\n'
            '                    T.sblock_attr({"tvm_hopper.async_op": "wgmma"})\n'
            '                    T.call_extern("int32", "mma", acc[0])\n'
            "                if tx == 0:\n",
        ),
    ),
]
