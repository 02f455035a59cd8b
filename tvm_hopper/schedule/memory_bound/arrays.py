"""Register arrays: inputs that are read once, results that wait for their store.

  Y[i, j] = f(X[i, j], W[j])            S[i] += X[i, k]
->
  X_local[i, j] = X[i, j]               one load for both, of whole vectors
  W_local[j] = W[j]
  S[i] += X_local[i, k]
  Y_local[i, j] = f(X_local[i, j], W_local[j])
  Y[i, j] = Y_local[i, j]               a store of whole vectors
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import s_tir
from tvm.tirx import IndexMap

from tvm_hopper import ir

from .numbers import is_numbered
from .program import Part, equal, plain_index, tensors_read


@dataclass(frozen=True)
class Read:
    """A tensor in memory, the blocks that read it, and whether it has a dimension of rows.

    `again` tells one that was loaded before, for other blocks.
    """

    tensor: Any
    readers: tuple[Part, ...]
    has_rows: bool
    again: bool = False


def find_reads(
    sch: s_tir.Schedule,
    parts: list[Part],
    by_element: frozenset[str] | None = None,
    numbered: bool = False,
) -> list[Read]:
    """Return the tensors whose elements are read where they are computed with, each once.

    What is read elsewhere, one value a row or at an index that is computed, stays a plain load.

    - `sch`: only read.
    - `parts`: the program, inlined.
    - `by_element`: names of the blocks that read along rows, if others compute one value a row.
      What those gather, as the logit of a label, is a load of its own.
    - `numbered`: whether elements of tensors of more dimensions than a row has are known by their
      number.
    """
    found = []
    along = [p for p in parts if by_element is None or p.name in by_element or p.reduced]
    for tensor in tensors_read(sch, parts):
        readers = [p for p in along if any(x.source.same_as(tensor) for x in p.loads)]
        if any(x.same_as(tensor) for p in parts for x in p.outputs) or not readers:
            continue
        loads = [(x, p) for p in readers for x in p.loads if x.source.same_as(tensor)]
        kinds = {
            _kind(load, part) or (_numbered_kind(load, part) if numbered else None)
            for load, part in loads
        }
        if kinds in ({"full"}, {"column"}):
            found.append(Read(tensor, tuple(readers), kinds == {"full"}))
    return found


def load_again(reads: list[Read], parts: list[Part]) -> list[Read]:
    """Part the readers of each row's tensors: those after the last reduction load it again."""
    reduces = [i for i, p in enumerate(parts) if p.reduced]
    late = parts[reduces[-1] + 1 :] if reduces else []
    found = []
    for read in reads:
        behind = tuple(p for p in read.readers if p in late)
        before = tuple(p for p in read.readers if p not in late)
        if read.has_rows and behind and before:
            found += [replace(read, readers=before), replace(read, readers=behind, again=True)]
        else:
            found.append(read)
    return found


def _kind(load: Any, part: Part) -> str | None:
    """Say whether an access is by row and column, by column alone, or anything else."""
    axes = list(part.axes)
    index = plain_index(load, [x.var for x in axes])
    if not index:
        return None
    read = axes[len(axes) - len(index) :]
    if len(index) not in (1, len(axes)) or not all(
        x.same_as(v.var) for x, v in zip(index, read, strict=True)
    ):
        return None
    extents = [x for x in load.source.shape if not ir.is_const(x, 1)]
    if len(extents) != len(read) or not all(
        equal(x, v.dom.extent) for x, v in zip(extents, read, strict=True)
    ):
        return None  # a part of the tensor
    return "full" if len(index) == len(axes) else "column"


def _numbered_kind(load: Any, part: Part) -> str | None:
    axes = list(part.axes)
    if is_numbered(load, part, axes):
        return "full" if len(axes) > 1 else "column"
    return "column" if is_numbered(load, part, axes[-1:]) else None


def keep_read(sch: s_tir.Schedule, read: Read, scope: str = "local") -> Any:
    """Let all readers of a tensor read registers, or shared memory; return what loads them."""
    first = read.readers[0]
    node = sch.get(first.block)
    index = next(i for i, x in enumerate(node.reads) if x.source.same_as(read.tensor))
    blocks = [p.block for p in read.readers]
    return sch.cache_read(first.block, index, scope, consumer_blocks=blocks)


def keep_output(sch: s_tir.Schedule, part: Part, number: int, readers: list[Part]) -> Any:
    """Let a block write one of its outputs to registers; return the block that stores them.

    Both count elements in the order in which the block computes them, whichever that of the tensor.
    """
    blocks = [p.block for p in readers] or None
    store = sch.cache_write(part.block, number, "local", consumer_blocks=blocks)
    order = _computed_order(part, number)
    if order != sorted(order):
        to_computed = IndexMap.from_func(
            lambda *i: [i[x] for x in order], ndim=len(order), index_dtype=_index_dtype(part)
        )
        sch.transform_layout(part.block, ("write", number), to_computed)
        sch.transform_block_layout(store, to_computed)
    return store


def _computed_order(part: Part, number: int) -> list[int]:
    """Return the dimensions of an output in the order of the block's variables."""
    variables = [x.var for x in part.node.iter_vars]
    indices = [x.min for x in part.node.writes[number].region]
    places = []
    for index in indices:
        found = [i for i, x in enumerate(variables) if index.same_as(x)]
        if not found and ir.static_int(index) is None:
            return list(range(len(indices)))  # dimensions that are computed keep their order
        places.append(found[0] if found else -1)
    return sorted(range(len(indices)), key=places.__getitem__)


def _index_dtype(part: Part) -> str:
    return ir.dtype_of(part.node.iter_vars[0].var)
