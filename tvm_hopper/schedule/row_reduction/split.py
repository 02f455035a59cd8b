"""Few rows: split each row over the thread blocks of a cluster.

  load X, load W, S = sum X                  by all of them: SMs without a row of their own are idle
  load X of blockIdx.y, again                out of L1, together with the row
  Y = f(X, S, W) of blockIdx.y               a vector of each thread
  store

What is after the last reduction takes as long as a row's share of an SM: a half of it here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.nests import Nest, Work
from tvm_hopper.schedule.memory_bound.program import Part

EARLY = (Work.LOAD, Work.LOAD_AGAIN)


def may_split(
    parts: list[Part], full: frozenset[str], reads: list[Read], stored: list[Any]
) -> bool:
    """Tell a program of which all that is stored is computed after the last reduction, by element.

    - `full`: names of the blocks that compute one value for each element.
    - `stored` (list of Buffer): the rest in memory, and other tensors.
    """
    last = max(i for i, p in enumerate(parts) if p.reduced)
    late = {p.name for p in parts[last + 1 :]}
    leaves = [p for p in parts if any(x.same_as(y) for x in p.outputs for y in stored)]
    shared = [p for x in reads if not x.has_rows for p in x.readers]
    elements = [p for p in parts if p.name in full]
    return all(p.name in full for p in leaves) and all(
        p.name in late for p in (*leaves, *shared, *elements)
    )


def read_late(reads: list[Read], parts: list[Part]) -> list[Read]:
    """Tell tensors apart that only blocks after the last reduction read: each reads a part."""
    last = max(i for i, p in enumerate(parts) if p.reduced)
    late = {p.name for p in parts[last + 1 :]}
    is_late = [all(p.name in late for p in x.readers) for x in reads]
    return [
        replace(x, readers=(p,), again=True) if own else x
        for x, own in zip(reads, is_late, strict=True)
        for p in (x.readers if own else x.readers[:1])
    ]


def find_late(nests: list[Nest]) -> list[Nest]:
    """Return the nests that run over the elements of a part: all that reduces nothing."""
    over = (Work.LOAD_AGAIN, Work.LOAD_COLUMNS, Work.COMPUTE, Work.STORE)
    return [x for x in nests if x.work in over]
