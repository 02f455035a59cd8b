"""What SelectCopies refuses."""

from tests.transforms.refusals.case import case
from tests.transforms.test_select_copies import AUTO, BY_THREADS
from tvm_hopper.transforms import SelectCopies

TMA = (AUTO, '{"tvm_hopper.async_copy": "tma"}')
PLACE = "((i * 32 + tx) * 8 + v)"

SELECTION = [
    case(
        "elements that are stored twice",
        BY_THREADS.replace("range(4)", "range(8)").replace("(i * 32 + tx)", "(i % 4 * 32 + tx)"),
        (SelectCopies,),
        r"block copy, tvm_hopper.async_copy: found stores to tile\[.*\] by loops "
        r"\['tx', 'i', 'v'\]; need a box of which each element is stored once; copy the tile in "
        r"loops over its dimensions, fused and split at will",
        TMA,
    ),
    case(
        "elements that depend on who stores them",
        BY_THREADS.replace("64 + (", "tx + (")
        .replace("range(4)", "range(1)")
        .replace(PLACE, "(i * 8 + v)"),
        (SelectCopies,),
        r"found elements A\[.*\] that depend on the thread or loop that stores them; need elements "
        r"that follow from their place in the tile; copy the tile by one index for each dimension",
        TMA,
    ),
]
