"""What is refused of epilogues that run beside products."""

from tests.transforms.refusals.case import case
from tests.transforms.test_overlap_epilogue import BEFORE
from tvm_hopper.transforms import OverlapEpilogue


def overlap(name, match, *changes):
    return case(name, BEFORE, (OverlapEpilogue,), rf"tvm_hopper.overlap: found {match}", *changes)


ROW = "for tile in T.serial(2):\n                        row"
AWAITED = '\n                            T.call_extern("int32", "tvm_hopper.await_filled"'
LOOP = "                        for k in T.serial(6):\n                            trip"
ROWS = "for subtile in T.serial(2):\n                                    for step"
STORE = """                        for subtile in T.serial(2):
                            for g in T.serial(4):
                                D[row, subtile, g] = acc[subtile * 4 + g]
"""
AXIS = 'thread="blockIdx.x"'
OVERLAPS = [
    overlap(
        "halves of a kernel that multiplies nothing",
        r"a kernel without products by WGMMA of a consumer role; need a product of which",
        (AXIS, AXIS + ', annotations={"tvm_hopper.overlap": 2}'),
        ('"tvm_hopper.async_op": "wgmma"', '"tvm_hopper.fused": 1'),
    ),
    overlap(
        "halves of one tile a block",
        r"1 loops around 1 products; need a loop over output tiles around one over k",
        (ROW, ROW.replace("for tile in T.serial(2)", "if bx >= 0")),
        (f"6 * tile + k{AWAITED}", f"k{AWAITED}"),
        ("bx * 2 + tile", "bx * 2"),
    ),
    overlap(
        "halves of a loop in a condition",
        r"a loop over k inside of a block or a condition; need one right in the loop over output",
        (LOOP, LOOP.replace("for k", "if bx > 0:\n                         for k")),
    ),
    overlap(
        "halves of a loop that does more",
        r"a loop over k that does more than wait, multiply and give its slot back; need one",
        ('"tvm_hopper.release": 0', '"tvm_hopper.release": 1'),
    ),
    overlap(
        "halves of one row of instructions",
        r"1 rows of instructions a consumer and 6 steps of k; need at least 2, such as of 128",
        (ROWS, ROWS.replace("T.serial(2)", "T.serial(1)")),
    ),
    overlap(
        "more steps than slots",
        r"4 steps; need at most 3, as the ring has slots; take fewer",
        ('"tvm_hopper.overlap": 2', '"tvm_hopper.overlap": 4'),
        (LOOP, LOOP.replace("6", "8")),
    ),
    overlap(
        "halves that begin with ones",
        r"an accumulator that begins with other values than zeros; need zeros, which",
        ("T.float32(0)", "T.float32(1)"),
    ),
    overlap(
        "an epilogue by columns",
        r"an epilogue that is not computed row of instructions by row; need results that threads",
        (STORE, STORE.replace("subtile", "column")),
    ),
]
