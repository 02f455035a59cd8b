"""Split-K and stream-K modes, and their constraints.

"cluster"     for part in range(split_k): for k0: ...     parts on the blocks of a cluster,
added in a fixed order
"workspace"   the same on any blocks; a second kernel adds, in a fixed order
"caller"      "workspace" where a call has an allocator, else "cluster": decided at each call
"serial"      one block after another adds to the same memory, in a fixed order
"atomic"      the hardware adds to the output, in any order
"stream"      persistent blocks have equal shares of all tiles' steps; each adds what the one before
              has left of a tile, in a fixed order, where a call has an allocator
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.arch import LARGEST_CLUSTER, MAX_CLUSTER
from tvm_hopper.requests import keys

if TYPE_CHECKING:
    from .recognize import Matmul

MODES = ("cluster", "workspace", "caller", "serial", "atomic", "stream")
CLUSTER, WORKSPACE, CALLER, SERIAL, ATOMIC, STREAM = MODES
THREADS = "threads"  # that store without TMA
ANYWHERE = MODES[1:5]  # blocks that are no cluster: in global memory


# -- checks of a `MatmulConfig`, whose module imports this one ------------------------------------


def check_cluster(where: str, config: Any) -> None:
    """Refuse clusters that not every chip holds, and what they cannot go with."""
    blocks, mode = config.cluster, config.split_mode
    if blocks is None:
        return
    count, most = blocks[0] * blocks[1], MAX_CLUSTER
    if min(blocks) < 1 or count > most:
        raise cannot_schedule(
            where,
            f"cluster={blocks}",
            f"rows and columns of tiles, from 1, that are at most {most} together",
        )
    asked = f"cluster={blocks} with split_k={config.split_k!r}"
    if count > 1 and mode in (SERIAL, ATOMIC, STREAM):
        need = "one of the two: blocks that add to the same memory are no cluster"
        raise cannot_schedule(where, asked, need)
    if count > 1 and mode in (None, CLUSTER) and count * config.parts > most:
        need = f"at most {most} blocks: each part of a sum has as many as there are tiles"
        raise cannot_schedule(where, asked, need)


def check_request(where: str, config: Any) -> None:
    """Refuse parts that no mode can distribute, and what cannot go with them."""
    parts, mode, asked = config.parts, config.split_mode, f"split_k={config.split_k!r}"
    if mode == STREAM:
        check_stream(where, config)
        return
    if parts == 1:
        if mode in (SERIAL, ATOMIC) and config.split_parts is None:
            need = f"a number of parts too, e.g. SplitK(4, {mode!r}): no other choice implies one"
            raise cannot_schedule(where, f"{asked} alone", need)
        return
    if mode in ANYWHERE:
        most = MAX_CLUSTER
        if mode in (CALLER, SERIAL) and all(parts % x for x in range(2, most + 1)):
            need = f"a multiple of a number from 2 to {most}: clusters for calls with no allocator"
            raise cannot_schedule(where, f"{asked} as the caller decides", need)
        if parts > keys.MOST_PARTS:
            need = f"at most {keys.MOST_PARTS}, which are added one by one"
            raise cannot_schedule(where, f"{asked} in global memory", need)
    elif parts > LARGEST_CLUSTER:
        raise cannot_schedule(
            where,
            f"{asked} in a cluster",
            f"at most {LARGEST_CLUSTER} parts, the blocks of a cluster",
            f'SplitK({parts}, "workspace") has more',
        )
    if config.persistent:
        need = "a cluster for each output tile, persistent=0"
        raise cannot_schedule(where, f"{asked} with persistent={config.persistent}", need)
    if config.store == THREADS and mode == ATOMIC:
        need = "TMA, which adds to memory, store='tma'"
        raise cannot_schedule(where, f"{asked} with store={config.store!r}", need)
    if config.by_tma and mode != ATOMIC:
        need = 'threads that store their own part of the sum, store="threads"'
        raise cannot_schedule(where, f"{asked} with store={config.store!r}", need)


def check_stream(where: str, config: Any) -> None:
    """Refuse what does not go with equal shares of all tiles' steps."""
    found, need = "", ""
    if config.split_parts is not None:
        need = "no parts: where sums come apart follows from the number of thread blocks"
    elif config.persistent == 0:
        found = " with persistent=0"
        need = "thread blocks that share all tiles: their number, or persistent=-1 for the SMs"
    elif config.by_tma:
        found = f" with store={config.store!r}"
        need = 'threads that store what they hold, store="threads"'
    if need:
        raise cannot_schedule(where, f"split_k={config.split_k!r}{found}", need)


def check_turns(where: str, config: Any) -> None:
    """Refuse options that exclude ping-pong consumers."""
    asked = f"schedule={config.schedule!r} with "
    if config.consumers == 1:
        raise cannot_schedule(
            where, f"{asked}consumers=1", "2 or 3, or no consumer multiplies meanwhile"
        )
    if config.persistent == 0:
        need = "thread blocks that compute several tiles, persistent=-1"
        raise cannot_schedule(where, f"{asked}persistent=0", need)
    if config.registers is not None:
        need = "registers left out: those of as many consumers as there are"
        raise cannot_schedule(where, f"{asked}registers={config.registers}", need)
    if config.shares_sums:
        need = "one of the two: blocks that share a sum compute one tile each"
        raise cannot_schedule(where, f"{asked}split_k={config.split_k!r}", need)
    if config.in_cluster:
        need = "one of the two: slots that blocks fill for one another are released by all at once"
        raise cannot_schedule(where, f"{asked}cluster={config.cluster}", need)
    if config.by_tma:
        need = "threads that store what they hold: the sets would share the memory"
        raise cannot_schedule(where, f"{asked}store={config.store!r}", need)


# -- checks of a product --------------------------------------------------------------------------


def check_known(problem: Matmul, mode: str | None, is_sampled: bool) -> None:
    """Refuse equal shares of steps where the number of tiles or of steps is not known."""
    extents = problem.m.extent, problem.n.extent, problem.k.extent
    if mode == STREAM and (is_sampled or not all(isinstance(x, int) for x in extents)):
        raise cannot_schedule(
            f"block {problem.name}",
            f"split_k={STREAM!r} with "
            + ("a sampled tile or stages" if is_sampled else "symbolic extents"),
            "extents and a tile that are known: shares of thread blocks follow from them",
            "leave split_k out",
        )


def check_spread(
    problem: Matmul, cluster: tuple[int, int] | None, tile: tuple[int, int, int] | None
) -> None:
    """Refuse a cluster of several rows and columns of tiles where there is one row of them.

    TVM forgets then at which row of its operand a block begins that has no tile.
    """
    if cluster is None or tile is None or min(cluster) == 1:
        return
    if isinstance(problem.m.extent, int) and problem.m.extent <= tile[0]:
        raise cannot_schedule(
            f"block {problem.name}, tile {'x'.join(map(str, tile))}",
            f"cluster={cluster} of an output with one row of tiles",
            "a cluster of one row, or several rows of tiles",
            f"request cluster={(1, cluster[1])}, or lower tiles",
        )
