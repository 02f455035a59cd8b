"""`across_blocks`, `across_cluster`: split reductions over thread blocks (split-K).

    C[...] = 0                                                a separate kernel
    for bx in blockIdx.x:
        for part in range(16):                                hs.across_blocks(sch, part)
            tile[...] = ...                                   one part's share
            C[...] = C[...] + tile[...]                       hs.async_store(..., reduce="add")

TVM binds no loop of a reduction to thread blocks, since plain updates of an element would race;
those that the hardware makes as atomic operations do not.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.analysis.updates import find_update
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import reductions
from tvm_hopper.facts.arch import LARGEST_CLUSTER
from tvm_hopper.requests import keys

from .arguments import as_choice, as_loop
from .asking import ask, check_serial
from .trial import all_or_nothing

AXES = ("blockIdx.z", "blockIdx.y")
MODES = ("cluster", "workspace", "caller", "serial", "atomic")  # split-K modes
VALUES = keys.BY_CLUSTER, keys.BY_KERNELS, keys.BY_CALLER, keys.BY_TURNS, keys.BY_ATOMICS
OF_A_CLUSTER = ", the thread blocks of a cluster"


def check_update(
    sch: s_tir.Schedule, where: str, block: Any, mechanism: str, reduce: str | None
) -> str | None:
    """Return the operation of a reducing store; refuse a block that computes another one."""
    reduce = as_choice(where, "reduce", reduce, reductions.OPERATIONS)
    if reduce is None:
        return None
    if mechanism == keys.BY_THREADS:
        raise cannot_schedule(
            where,
            f"reduce={reduce!r} by threads, whose updates of one element would race",
            'a mechanism of the hardware: "auto", "tma" or "bulk"',
        )
    stores = ir.find_all(sch.get(block).body, ir.BufferStore)
    update = find_update(stores[0]) if len(stores) == 1 else None
    if update is None or update.operation != reduce:
        found = "no update in place" if update is None else f"an update by {update.operation!r}"
        raise cannot_schedule(
            where,
            found,
            f"C[...] = C[...] {reduce} tile[...], with the initial value set elsewhere",
            "decompose_reduction at the outermost loop, then cache_read what is added into "
            '"shared.dyn"',
        )
    return reduce


@all_or_nothing("a serial loop around updates that the hardware makes")
def across_blocks(sch: s_tir.Schedule, loop: Any, axis: str = "blockIdx.z") -> None:
    """Bind a serial loop to thread blocks, whose results combine by atomic reductions alone.

    All writes of the loop to global memory must be stores with `reduce`, and its tiles must be
    allocated in each iteration. A separate kernel before it sets the initial value.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    loop : LoopRV
        A serial loop directly inside the loops bound to thread blocks, around the whole kernel.
    axis : str
        "blockIdx.z" or "blockIdx.y", which no other loop of the kernel is bound to.

    Raises
    ------
    ScheduleError
        The loop is bound or not serial, or no block in it requests a reduction.
    """
    loop = as_loop(sch, loop)
    node = sch.get(loop)
    where = f"loop {node.loop_var.name}"
    axis = as_choice(where, "axis", axis, AXES) or AXES[0]
    if node.kind != ir.ForKind.SERIAL:
        kind = ir.ForKind(node.kind).name.lower()
        raise cannot_schedule(where, f"a loop of kind {kind}", "a serial loop, bound to nothing")
    if not ir.find_blocks(node, keys.REDUCE):
        raise cannot_schedule(
            where,
            "no store that combines what it moves with what is there",
            "at least one, which combines the iterations",
            'request it first: hs.async_store(..., reduce="add")',
        )
    ask(sch, where, loop, keys.ACROSS_BLOCKS, axis)


@all_or_nothing("a serial loop around the pipelined loop of a product")
def across_cluster(sch: s_tir.Schedule, loop: Any, mode: str = "cluster") -> None:
    """Split-K: let thread blocks share the iterations of a product's reduction loop.

    Each block sums one iteration. Then the partial sums are added, in the order of the iterations
    except with "atomic". Results are deterministic in that order.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    loop : LoopRV
        A serial loop of 2 to 16 iterations around the pipelined loop of a product by WGMMA, inside
        of the loops bound to thread blocks and warp groups, behind the initial value
        (`decompose_reduction` at this loop). No loop is bound to blockIdx.z.
    mode : str
        "cluster": up to 16 blocks of a cluster, through shared memory. "workspace": up to 64
        blocks, through global memory; a second kernel adds and stores. The caller's allocator gives
        the workspace for the stream of the call; with TVM's own tensors it is the calling thread's,
        whose calls must share one stream. "caller": "workspace" if the call has an allocator
        (PyTorch's tensors), else a cluster. "serial": blocks add to one buffer in order, and the
        last one stores; else as "caller". "atomic": atomic reductions to the output, in any order.

    Raises
    ------
    ScheduleError
        The loop is bound or not serial, or has another number of iterations.
    """
    loop = as_loop(sch, loop)
    node = sch.get(loop)
    where = f"loop {node.loop_var.name}"
    mode = as_choice(where, "mode", mode, MODES) or MODES[0]
    by_kernels = mode != MODES[0]
    most = keys.MOST_PARTS if by_kernels else LARGEST_CLUSTER
    what = ", parts that a second kernel adds" if by_kernels else OF_A_CLUSTER
    check_serial(where, node, most, what, "split the sum by that number")
    value = VALUES[MODES.index(mode)]
    ask(sch, where, loop, keys.ACROSS_CLUSTER, value)
