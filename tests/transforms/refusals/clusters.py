"""What is refused about thread blocks of a cluster that load for one another."""

from tests.transforms.refusals.case import case
from tests.transforms.tile_scheduling.test_multicast_loads import BEFORE, HALVES
from tvm_hopper.transforms import MulticastLoads


def shared(name, match, *changes):
    return case(name, BEFORE, (MulticastLoads,), match, *changes)


CLUSTERS = [
    shared(
        "no axis of a cluster",
        r"loop bx, tvm_hopper.share_loads: found no loop of known extent on blockIdx.z",
        ('thread="blockIdx.z"', 'thread="blockIdx.y"'),
    ),
    shared(
        "more blocks than run everywhere",
        r"found 16 iterations on blockIdx.z; need 2 to 8: the thread blocks of a cluster",
        ('T.thread_binding(2, thread="blockIdx.z")', 'T.thread_binding(16, thread="blockIdx.z")'),
    ),
    shared(
        "no producer",
        r"found a kernel whose threads load and compute; need a producer, which waits for the",
        ("tvm_hopper.await_free", "tvm_hopper.await_filled"),
    ),
    shared(
        "loads that differ",
        r"found loads by TMA that differ from block to block; need a load that several blocks",
        ("panel * 64, part * 16", "panel * 64, part * 16 + rank * 64"),
    ),
    shared(
        "loops that differ",
        r"loop k: found rank \+ 8 iterations around loads that blocks of a cluster share",
        ("for k in T.serial(8)", "for k in T.serial(8 + rank)"),
    ),
    shared(
        "blocks that load for more than others do",
        r"found blocks that load for 3 or 4 of the cluster; need the same number",
        ("(bx * 2 + rank) * 64", "(bx * 2 + rank // 2) * 64"),
        ('T.thread_binding(2, thread="blockIdx.z")', 'T.thread_binding(6, thread="blockIdx.z")'),
        *HALVES,
        ("for part in range(4)", "for part in range(3)"),
        ("panel * 64, part * 16", "panel * 64, part * 16 + rank // 3 * 64"),
    ),
]
