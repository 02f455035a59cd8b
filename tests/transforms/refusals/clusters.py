"""What is refused about thread blocks of a cluster that load for one another."""

from tests.transforms.refusals.case import case, rows
from tests.transforms.tile_scheduling.test_multicast_loads import BEFORE, HALVES
from tvm_hopper.transforms import MulticastLoads


def shared(name, match, *changes):
    return case(name, BEFORE, (MulticastLoads,), match, *changes)


CLUSTERS = [
    *rows(shared, HALVES=HALVES)("""
no axis of a cluster
    thread="blockIdx.z" => thread="blockIdx.y"
    loop bx, tvm_hopper.share_loads: found no loop of known extent on blockIdx.z
more blocks than run everywhere
    T.thread_binding(2, thread="blockIdx.z") => T.thread_binding(16, thread="blockIdx.z")
    found 16 iterations on blockIdx.z; need 2 to 8: the thread blocks of a cluster
no producer
    tvm_hopper.await_free => tvm_hopper.await_filled
    found a kernel whose threads load and compute; need a producer, which waits for the
loads that differ
    panel * 64, part * 16 => panel * 64, part * 16 + rank * 64
    found loads by TMA that differ from block to block; need a load that several blocks
loops that differ
    for k in T.serial(8) => for k in T.serial(8 + rank)
    loop k: found rank + 8 iterations around loads that blocks of a cluster share
blocks that load for more than others do
    (bx * 2 + rank) * 64 => (bx * 2 + rank // 2) * 64
    T.thread_binding(2, thread="blockIdx.z") => T.thread_binding(6, thread="blockIdx.z")
    + *HALVES
    for part in range(4) => for part in range(3)
    panel * 64, part * 16 => panel * 64, part * 16 + rank // 3 * 64
    found blocks that load for 3 or 4 of the cluster; need the same number
    """),
]
