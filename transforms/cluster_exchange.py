"""Send what the warps of a thread block have reduced to all thread blocks of its cluster.

    rank, warp, lane                                       4 thread blocks of 8 warps
      ->
    if lane < 4:
        remote = mapa(address_of(of_warps[slot, row, 8 * rank + warp]), lane)
        st.shared::cluster(remote, total[0])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.ptx import address, cluster


def send(
    axis: ir.For,
    num_warps: int,
    places: list[tuple[ir.Var, list[Any]]],
    values: Sequence[ir.TensorLoad],
    warp: Any,
    lane: Any,
) -> list[ir.Stmt]:
    """Let a warp store its values to each thread block of the cluster, one lane to each.

    Parameters
    ----------
    axis : For
        The loop over the thread blocks of a cluster.
    num_warps : int
        Warps of a row in one of them.
    places : list of (Var, list)
        For each value the shared array, and the first indices of its row.
    values : sequence of TensorLoad
        Registers, which are alike in all lanes.
    warp, lane
        Numbers of the thread.
    """
    count, rank = int(axis.extent), axis.loop_var
    remote = ir.new_buffer("remote", (1,), "uint32", "local")
    stmts: list[Any] = [ir.BufferStore(remote, tirx.IntImm("uint32", 0), [0])]
    for (buffer, place), value in zip(places, values, strict=True):
        own = tirx.BufferLoad(buffer, [*place, rank * num_warps + warp])
        here = address.generic_to_shared(tirx.address_of(own))
        peer = tirx.Cast("uint32", lane)
        target = tirx.BufferLoad(remote, [0])
        stmts += [
            cluster.peer_address(target, here, peer),
            cluster.store(target, value, ir.dtype_of(value)),
        ]
    sent = ir.IfThenElse(lane < count, ir.seq(*stmts), None)
    return [ir.opaque_block("send", sent, alloc_buffers=[remote])]
