"""What is refused of consumers that compute output tiles in turn."""

from tests.transforms.pipeline.test_plan_ring_buffers import PLAIN_READER, PLANNED
from tests.transforms.refusals.case import case
from tests.transforms.warp_specialization.test_specialize_warps import asking
from tvm_hopper.transforms import SpecializeWarps

AXIS = 'T.thread_binding(3, thread="blockIdx.x")'
ALONE = (
    AXIS,
    'T.thread_binding(3, thread="blockIdx.x", annotations={"tvm_hopper.turns": 2})',
)
SHARED = (
    AXIS,
    'T.thread_binding(3, thread="blockIdx.x", '
    'annotations={"tvm_hopper.turns": 2, "tvm_hopper.persistent": 2})',
)
ONE_GROUP = ("T.thread_binding(256", "T.thread_binding(128")


def turns(name, match, *changes):
    return case(name, PLANNED, (SpecializeWarps,), match, *changes)


TURNS = [
    turns(
        "turns without a next tile",
        r"loop bx, tvm_hopper.turns = 2: found thread blocks of one output tile each; need blocks "
        r"that share the tiles \(tvm_hopper.persistent\), so that there is a next one; hs.raster",
        ALONE,
        ONE_GROUP,
    ),
    turns(
        "turns of more warp groups than there are registers for",
        r"found 2 warp groups in each consumer group; need a product by WGMMA, and at most 3 "
        r"warp groups in all",
        SHARED,
    ),
    turns(
        "turns of plain loops",
        r"found threads that do not multiply; need a product by WGMMA",
        SHARED,
        PLAIN_READER,
        asking("consumers", 2),
    ),
    turns(
        "turns of blocks that load for one another",
        r"found thread blocks that load for one another \(tvm_hopper.share_loads of bx\); need",
        (
            AXIS,
            SHARED[1].replace(
                '"tvm_hopper.turns"', '"tvm_hopper.share_loads": 1, "tvm_hopper.turns"'
            ),
        ),
        ONE_GROUP,
    ),
]
