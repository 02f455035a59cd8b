"""`share_loads`: multicast loads between the thread blocks of a cluster.

for by in blockIdx.y:
for bx in blockIdx.x:
for rank in range(2):                    hs.share_loads(sch, rank)
A_tile[...] = A[(2 * by + rank) * 128 + ..., k]          its own
B_tile[...] = B[bx * 64 + ..., k]                        half of it, for both
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.arch import MAX_CLUSTER
from tvm_hopper.requests import keys

from .arguments import as_loop
from .asking import ask, check_serial
from .trial import all_or_nothing

AXIS = "blockIdx.z"
COLUMNS = "blockIdx.x"


@all_or_nothing("a loop over thread blocks around a pipelined loop with consumers")
def share_loads(sch: s_tir.Schedule, loop: Any) -> None:
    """Multicast: make a loop's iterations the thread blocks of a cluster that share their loads.

    TMA copies that several of them need are made once: each block loads a share of the boxes for
    all. The loop is bound to blockIdx.z.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    loop : LoopRV
        A loop of 2 to 8 iterations, inside of those bound to blockIdx.x and blockIdx.y, around the
        threads and the pipelined loop, which has consumers (`hs.pipeline`).

    Raises
    ------
    ScheduleError
        The loop is bound or not serial, or has another number of iterations.
    """
    loop = as_loop(sch, loop)
    node = sch.get(loop)
    where = f"loop {node.loop_var.name}"
    fix = "split one of the loops over thread blocks by that number"
    check_serial(where, node, MAX_CLUSTER, ", the thread blocks of a cluster", fix)
    around = sch.get_loops(sch.get_child_blocks(loop)[0])
    columns = [x for x in around if _tag(sch.get(x)) == COLUMNS]
    if not columns:
        raise cannot_schedule(
            where,
            f"no loop around it that is bound to {COLUMNS}",
            f"one: what is asked of a kernel's thread blocks stands on {COLUMNS}",
            "bind the loop over columns of tiles before",
        )
    sch.bind(loop, AXIS)
    ask(sch, where, columns[0], keys.SHARE_LOADS, 1)


def _tag(loop: ir.For) -> str:
    return "" if loop.thread_binding is None else str(loop.thread_binding.thread_tag)
