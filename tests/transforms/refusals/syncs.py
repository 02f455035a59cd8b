"""What InsertSyncs refuses; the messages of the sync engine are all in test_insert_syncs.py."""

from tests.transforms.refusals.case import case
from tests.transforms.test_insert_syncs import ALONE
from tvm_hopper.transforms import InsertSyncs

SYNCS = [
    case(
        "store to a tile that copies run ahead into",
        ALONE,
        (InsertSyncs,),
        r"block use: found a write of 'ring', whose copies are made only if they are read; need ",
        ("C[tx] = C[tx] + ring", "ring[trip % 2, tx] = C[tx] + ring"),
    ),
]
