"""Tell which vector types TVM's CUDA code generator can print.

    float32x8(x, x, ...)    a call of a constructor that takes no 8 arguments: CUDA has none
    int8x4(x, x, x, x)      x has to be a constant: anything else ends in a failed check
    A[int32x8(i, i, ...)]   a place for each of 8 lanes: CUDA has no vector of 8 integers
    float16x16              no type at all
    boolx4 in memory        printed as ushort4: 2 bytes for each, where the array has one

Upstream: `PrintVecElemStore` and the broadcasts of src/backend/cuda/codegen/codegen_cuda.cc, as of
apache-tvm 0.27.0.post1.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import sym, tirx

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.facts.programming_model import THREAD_ACCESS_BYTES

PRINTED_LANES = {1: 4, 2: 8, 4: 4, 8: 2}  # by bytes of an element: of vectors with constructors
MOST_PLACES = 4  # lanes of a vector of places, 32-bit integers


def most_lanes(loop: ir.For) -> int:
    """Return how many iterations of a vectorized loop can be one vector: a power of two.

    That is at most what a thread loads or stores at once.
    """
    stores = ir.find_all(loop.body, ir.BufferStore)
    typed = [x for store in stores for x in _typed(store, loop.loop_var)]
    if any(ir.dtype_of(x) == "bool" for x in typed if not isinstance(x, tirx.Cast)):
        return 1
    names = {ir.dtype_of(x) for x in typed} - {"bool"}
    sizes = [DTYPES[name].num_bytes for name in names if name in DTYPES]
    if all(isinstance(store.value, ir.TensorLoad) for store in stores):
        lanes = min((THREAD_ACCESS_BYTES // x for x in sizes), default=THREAD_ACCESS_BYTES)
    else:
        lanes = min((PRINTED_LANES[size] for size in sizes), default=THREAD_ACCESS_BYTES)
        if any(_spreads_byte(store.value, loop.loop_var) for store in stores):
            return 1
    extent = ir.static_int(loop.extent) or lanes
    lanes = min(lanes, extent & -extent)  # of more than there are, some may lie apart
    apart = [x for store in stores for x in _apart(store, loop.loop_var, lanes)]
    if any(DTYPES[name].num_bytes == 1 for name in apart):
        return 1
    return min(lanes, MOST_PLACES) if apart else lanes


def _typed(store: ir.BufferStore, lane: ir.Var) -> list[Any]:
    """Return what has a type that a vector would have: tensors, and casts of what is computed."""
    loads = [load.source for load in _loads_of_lanes(store.value, lane)]
    # the types of indices are no vector's
    value = ir.replace(store.value, ir.TensorLoad, lambda x: ir.Var("x", ir.dtype_of(x)))
    return [store.buffer, *loads, *ir.find_all(value, tirx.Cast)]


def _loads_of_lanes(value: Any, lane: ir.Var) -> list[Any]:
    """Return the loads of a value, but not what says the same place for all lanes."""
    loads = ir.find_all(value, ir.TensorLoad)
    inner = [y for x in loads for y in ir.find_all(list(x.indices), ir.TensorLoad)]
    return [x for x in loads if ir.depends_on(x, [lane]) or not any(x.same_as(y) for y in inner)]


def _apart(store: Any, lane: ir.Var, lanes: int) -> list[str]:
    """Return the types of what lanes load and store at places that are no neighbors."""
    analyzer = sym.Analyzer()
    analyzer.bind(lane, tvm.ir.Range.from_min_extent(0, lanes))

    def are_neighbors(buffer: Any, indices: Any) -> bool:
        *outer, last = (analyzer.simplify(ir.without_carry(x, lane, lanes)) for x in indices)
        start = analyzer.simplify(last - lane)
        if not any(ir.depends_on(index, [lane]) for index in (*outer, start)):
            return True
        place = _number(buffer, indices)  # of X[(t * 8 + lane) // 28, (t * 8 + lane) % 28]
        return place is not None and not ir.depends_on(analyzer.simplify(place - lane), [lane])

    loads = ir.find_all(store.value, ir.TensorLoad)
    places = [(x.source, x.indices) for x in loads]
    places.append((store.buffer, store.indices))
    return [
        ir.dtype_of(buffer)
        for buffer, indices in places
        if ir.dtype_of(buffer) in DTYPES
        and any(ir.depends_on(index, [lane]) for index in indices)
        and not are_neighbors(buffer, indices)
    ]


def _number(buffer: Any, indices: Any) -> Any:
    """Return the number of an element, counted along all dimensions; None with strides."""
    if buffer.ty.strides:
        return None
    first, *rest = zip(indices, buffer.shape, strict=True)
    number = first[0]
    for index, extent in rest:
        number = number * ir.cast_like(extent, number) + ir.cast_like(index, number)
    return number


def _spreads_byte(value: Any, lane: ir.Var) -> bool:
    """Tell whether bytes that are no constants are the same in all lanes."""
    nodes = [*ir.find_all(value, ir.TensorLoad), *ir.find_all(value, tirx.Cast)]
    names = [ir.dtype_of(x) for x in nodes if not ir.depends_on(x, [lane])]
    return any(name in DTYPES and DTYPES[name].num_bytes == 1 for name in names)
