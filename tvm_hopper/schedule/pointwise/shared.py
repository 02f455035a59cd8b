"""Find values that neighbouring elements of a row share.

Y[t, j] = X[t, j] * C[t, j % 128] + ..        the elements of token t share a row of C

A thread whose vectors lie in one row of C, a multiple of its length apart, loads C once for all.

Elements of a thread's vector that are no neighbours where they are read are loaded one by one.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.schedule.memory_bound.arrays import Read
from tvm_hopper.schedule.memory_bound.program import Part
from tvm_hopper.transforms.memory_bound.vectorize_gathers_plan import find_vectors

from .recognize import ElementProgram

PAIR, LEAST_BYTES = 2, 4  # that a thread stores at least: divided for once, and a line of a warp


def find_span(parts: list[Part], reads: list[Read]) -> int | None:
    """Return how many neighbouring elements share what is read of a tensor; None for no such.

    - `parts`: the program, inlined.
    - `reads`: tensors whose elements are read where they are computed with.
    """
    spans = [
        _span(part, load)
        for part in parts
        for load in part.loads
        if not _is_any(load.source, [x.tensor for x in reads])
    ]
    return min((x for x in spans if x is not None), default=None)


def find_gathered(parts: list[Part]) -> list[Read]:
    """Return the tensor that a program loads where none is read at the elements it computes."""
    axes = parts[0].spatial
    found = [
        load.source
        for part in parts
        for load in part.loads
        if axes and ir.depends_on(list(load.indices), [part.spatial[-1].var])
    ]
    sizes = [prod(ir.static_int(x) or 1 for x in tensor.shape) for tensor in found]
    return [Read(found[sizes.index(max(sizes))], (), True)] if found else []


def _span(part: Part, load: Any) -> int | None:
    axes, shape = part.spatial, list(load.source.shape)
    together = 0  # leading dimensions that the tensor has in common with the elements
    for index, axis in zip(load.indices, axes, strict=False):
        if not index.same_as(axis.var):
            break
        together += 1
    if not together or together in (len(axes), len(shape)):
        return None
    own = [ir.static_int(x.dom.extent) for x in axes[together:]]
    lengths = [ir.static_int(x) for x in shape[together:]]
    if None in own or None in lengths:
        return None
    elements, length = (prod(x or 0 for x in sizes) for sizes in (own, lengths))
    return elements if length < elements and elements % length == 0 else None


def vector_of_neighbours(
    program: ElementProgram, parts: list[Part], reads: list[Read], vector: int
) -> int:
    """Return the elements of a vector that lie side by side wherever they are read.

    Otherwise threads that load single elements of wide vectors find them far apart: a warp touches
    as many cache lines for each element as for a vector of all its threads.

    - `program`: extents of the elements.
    - `parts`: the program, inlined.
    - `reads`: tensors whose elements are read where they are computed with.
    - `vector`: elements of the widest vector.
    """
    along = [p.spatial[-1].var for p in parts]  # what a row shares is read in any case
    loads = [(x, y) for p, y in zip(parts, along, strict=True) for x in p.loads]
    fixed = [x.source for x, y in loads if not ir.depends_on(list(x.indices), [y])]
    known = [*fixed, *(x.tensor for x in reads), *(x for p in parts for x in p.outputs)]
    width = min(dtype_bytes(ir.dtype_of(p.outputs[0])) for p in parts)
    least = max(PAIR, LEAST_BYTES // width)
    while vector > least and not all(
        _are_neighbours(program, part, known, vector) for part in parts
    ):
        vector //= 2
    return vector


def _are_neighbours(program: ElementProgram, part: Part, known: list[Any], vector: int) -> bool:
    """Tell whether vectors have all that a block loads elsewhere than at its elements."""
    row = part.spatial[len(program.rows) :]
    dtype = ir.dtype_of(row[0].var)
    lane, number = ir.Var("lane", dtype), ir.Var("vector", dtype)
    place, step = number * vector + lane, 1
    index = {x.var: 0 for x in part.reduced if ir.is_const(x.dom.extent, 1)}
    for axis in reversed(row[1:]):
        index[axis.var] = place // step % axis.dom.extent
        step = step * axis.dom.extent
    index[row[0].var] = place // step
    nothing = tirx.Evaluate(0)
    loop = ir.For(lane, 0, vector, ir.ForKind.UNROLLED, nothing)
    value, vectors = find_vectors(loop, ir.substitute(part.store.value, index))
    found = [x for one in vectors for x in one.loads]
    loads = ir.find_all(value, ir.TensorLoad, lambda x: ir.depends_on(list(x.indices), [lane]))
    loads = [x for x in loads if not ir.find_all(list(x.indices), ir.TensorLoad)]  # anywhere
    return all(any(x.same_as(y) for y in found) or _is_any(x.source, known) for x in loads)


def _is_any(tensor: Any, tensors: list[Any]) -> bool:
    return any(tensor.same_as(x) for x in tensors)
