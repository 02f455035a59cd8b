"""What is refused of consumers that compute output tiles in turn."""

from tests.transforms.pipeline.test_plan_ring_buffers import PLANNED
from tests.transforms.refusals.case import case, rows
from tvm_hopper.transforms import SpecializeWarps

AXIS = 'T.thread_binding(3, thread="blockIdx.x")'
ALONE = (AXIS, AXIS[:-1] + ", turns=2)")
SHARED = (AXIS, AXIS[:-1] + ", turns=2, persistent=2)")
ONE_GROUP = ("T.thread_binding(256", "T.thread_binding(128")


def turns(name, match, *changes):
    return case(name, PLANNED, (SpecializeWarps,), match, *changes)


TURNS = [
    *rows(turns, ALONE=ALONE, SHARED=SHARED)("""
turns without a next tile
    + ALONE
    T.thread_binding(256 => T.thread_binding(128
    loop bx, tvm_hopper.turns = 2: found thread blocks of one output tile each; need blocks that
    share the tiles (tvm_hopper.persistent), so that there is a next one; hs.raster
turns of more warp groups than there are registers for
    + SHARED
    found 2 warp groups in each consumer group; need a product by WGMMA, and at most 3 warp groups
    in all
turns of plain loops
    + SHARED
    async_op="wgmma" => other=1
    num_slots=2 => num_slots=2, consumers=2
    found threads that do not multiply; need a product by WGMMA
    """),
    turns(
        "turns of blocks that load for one another",
        r"found thread blocks that load for one another \(tvm_hopper.share_loads of bx\); need",
        (AXIS, SHARED[1].replace("turns=2", "share_loads=1, turns=2")),
        ONE_GROUP,
    ),
]
