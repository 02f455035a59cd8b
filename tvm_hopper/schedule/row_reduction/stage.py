"""Stage rows in shared memory by bulk copies.

  for k: S[i] += X[i, k]                 for j: Y[i, j] = f(X[i, j], S[i], W[j])
->
  X_shared = X[i, ..]                    asynchronous, by one thread, in as many bytes as a row has
  for part: load X_shared; S += ...
  reduce S across threads
  for part: load X_shared, W; compute; store Y
"""

from __future__ import annotations

from dataclasses import replace

from tvm import s_tir

from tvm_hopper.requests import keys
from tvm_hopper.schedule.memory_bound.arrays import Read, keep_read
from tvm_hopper.schedule.memory_bound.nests import Nest, Work
from tvm_hopper.schedule.memory_bound.tiles import PART_AXIS, RegisterTile

HINTED = (Work.STAGE,)  # what L2 is to give up last


def stage_rows(
    sch: s_tir.Schedule, reads: list[Read], shared: bool
) -> tuple[list[Nest], list[Read]]:
    """Copy rows to shared memory; return the nests that do, and reads of the copies.

    - `reads`: what the program reads, each tensor once.
    - `shared`: whether what all rows share waits there, too: the rows of a thread block read it
      once.
    """
    nests, found = [], []
    for read in reads:
        if not read.has_rows and not shared:
            found.append(read)
            continue
        block = keep_read(sch, read, "shared.dyn")
        nests.append(Nest(block, Work.STAGE if read.has_rows else Work.STAGE_COLUMNS))
        found.append(replace(read, tensor=sch.get(block).writes[0].source))
    return nests, found


def ask_for_bulk(
    sch: s_tir.Schedule, nests: list[Nest], columns: int, tile: RegisterTile, hint: bool
) -> None:
    """Let bulk copies bring rows to shared memory, a thread block's part of each."""
    for nest in nests:
        if tile.cluster > 1:
            whole = tile.columns
            loop = list(sch.get_loops(nest.block))[-1]
            part, _ = sch.split(loop, [tile.cluster, -(-columns // whole) * whole // tile.cluster])
            sch.bind(part, PART_AXIS)
        sch.annotate(nest.block, keys.ASYNC_COPY, "bulk")
        if hint and nest.work in HINTED:
            sch.annotate(nest.block, keys.CACHE_HINT, "evict_last")
