"""Load whole vectors for blocks that read some columns of a tensor's rows.

    G[i, j] = X[i, j]                  X: (rows, 2 N)
    U[i, j] = X[i, j + N]
    Y[i, j] = silu(G[i, j]) * U[i, j]
  ->
    G, U in registers                  each a load of vectors, as a separate tensor would be

Inlined, each element would be loaded by itself, as often as it is used.
"""

from __future__ import annotations

from typing import Any

from tvm_hopper import ir
from tvm_hopper.schedule.memory_bound.inline import chooses_loads
from tvm_hopper.schedule.memory_bound.program import MemoryProgram, Part, equal, results

STEP = 16  # elements: parts that begin at a multiple begin at whole vectors
LEAST_COLUMNS = 1024  # of a row: fewer leave most threads of its thread block without a vector


def find_columns_read(program: MemoryProgram) -> frozenset[str]:
    """Return the names of blocks that only read some columns of rows in memory.

    They stay blocks where two or more read one tensor, which is none that is read whole. Where rows
    are short, threads go on over all elements, and find their vectors by the number of the first.
    """
    parts, stored = program.parts, results(program.sch, program.parts)
    found = [p for p in parts if _reads_columns(p) and not _is_any(p.outputs[0], stored)]
    sources, made = [p.loads[0].source for p in found], [x for p in parts for x in p.outputs]
    return frozenset(
        p.name
        for p in found
        if not _is_any(p.loads[0].source, made)
        and sum(x.same_as(p.loads[0].source) for x in sources) > 1
        and _is_read_in_place(p, parts)
    )


def find_choices(program: MemoryProgram) -> frozenset[str]:
    """Return the names of blocks that choose what they load, as padding and concatenation do.

    They stay blocks where others read their results: inlined, a thread would compute with one
    element before it loads the next.
    """
    parts, stored = program.parts, results(program.sch, program.parts)
    return frozenset(
        p.name
        for p in parts
        if not p.reduced
        and isinstance(p.store, ir.BufferStore)
        and chooses_loads(p.store.value)
        and not _is_any(p.outputs[0], stored)
        and _is_read_in_place(p, parts)
    )


def _reads_columns(part: Part) -> bool:
    if part.reduced or not isinstance(part.store, ir.BufferStore):
        return False
    value, axes = part.store.value, [x.var for x in part.node.iter_vars]
    if not isinstance(value, ir.TensorLoad) or len(axes) < 2:
        return False
    indices, shape = list(value.indices), list(value.source.shape)
    if not _are(indices[:-1], axes[:-1]) or not _are(list(part.store.indices), axes):
        return False
    start = ir.static_int(ir.simplify(indices[-1] - axes[-1]))
    extents = [x.dom.extent for x in part.node.iter_vars]
    is_row = all(equal(x, y) for x, y in zip(extents[:-1], shape[:-1], strict=True))
    sizes = [start, ir.static_int(extents[-1]), ir.static_int(shape[-1])]
    is_long = sizes[1] is not None and sizes[1] >= LEAST_COLUMNS
    return is_row and is_long and all(x is not None and x % STEP == 0 for x in sizes)


def _is_read_in_place(part: Part, parts: list[Part]) -> bool:
    """Tell whether all that read a block's result read the element that they compute."""
    (result,) = part.outputs
    reads = [(x, p) for p in parts for x in p.loads if x.source.same_as(result)]
    return bool(reads) and all(
        _are(list(x.indices), [v.var for v in p.node.iter_vars]) for x, p in reads
    )


def _are(indices: list[Any], variables: list[Any]) -> bool:
    return len(indices) == len(variables) and all(
        x.same_as(v) for x, v in zip(indices, variables, strict=True)
    )


def _is_any(buffer: Any, buffers: list[Any]) -> bool:
    return any(x.same_as(buffer) for x in buffers)
