"""Products of few rows by dot products (matrix times vector).

    C[i, j] += A[i, k] * B[j, k]                                       few i
  ->
  blockIdx.y          tiles of rows
    blockIdx.x, threadIdx.y     columns of C: rows of B
      threadIdx.x                 threads that share a sum
        for k0:
          load B                    vectors, all in flight, given up first by the caches
          load A                    vectors, out of L1
          own += A * B              float32, in registers
      C = sum of own              by shuffles, and one barrier where several warps share it
      store                       with the epilogue

A tensor core has little to do here: its tile of 64 is mostly empty, and its operands go through
shared memory.  The order of a sum is fixed, and another one than a tensor core's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import s_tir
from tvm.tirx import IndexMap

from tvm_hopper import ir
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests import keys
from tvm_hopper.schedule import steps

from . import fuse
from .dot_shape import VECTOR_BYTES, DotShape
from .outputs import keep_in_registers, separate_outputs
from .recognize import Matmul, find_matmul, read_index
from .thread_rates import ThreadKernel
from .wide_sums import widen_product


@dataclass(frozen=True)
class DotSite:
    """A product that is ready to be distributed."""

    block: Any  # the product, padded to whole tiles
    stores: list[Any]  # the blocks that store its outputs
    grid: Any  # the loop over tiles of rows
    m: Any  # over the rows of one
    n: Any  # over all columns
    k: Any  # over the sum
    operands: tuple[int, int]  # which of the block's reads are A and B
    row: str  # name of the block's axis of rows


def apply_dots(
    sch: s_tir.Schedule, block: Any, known: Matmul, kernel: ThreadKernel[DotShape], outputs: int
) -> Any:
    """Schedule a product as dot products.

    - `block` (SBlockRV): the multiply-add, in plain loops; its casts are inlined.
    - `outputs`: tensors that the kernel leaves in memory.
    - returns (SBlockRV): the block that adds up what threads have summed.
    """
    if kernel.is_narrow:
        block = widen_product(sch, block)
    shape = kernel.shape
    problem = find_matmul(sch, block, known)
    vector = VECTOR_BYTES // dtype_bytes(problem.rhs.dtype)
    whole = kernel.rows, shape.groups * shape.columns, shape.step(vector)
    problem = steps.pad_matmul(sch, block, problem, whole)
    site = _prepare(sch, block, problem, kernel.rows, outputs)
    inner = _share_out(sch, site, shape, vector, kernel.early)
    sch.bind(site.grid, "blockIdx.y")
    sch.bind(inner, "blockIdx.x")
    kernel.note(sch, inner, keys.DOT_PRODUCTS)
    return block


def _prepare(sch: s_tir.Schedule, block: Any, problem: Matmul, rows: int, outputs: int) -> DotSite:
    """Give a product stores of its own, and loops in the order of the kernel's."""
    if outputs > 1:
        stores = keep_in_registers(sch, block, separate_outputs(sch, block))
    else:
        stores = [sch.cache_write(block, 0, "local")]
    loops = list(sch.get_loops(block))
    places = [a.loop for a in (problem.m, problem.n, problem.k)]
    m, n, k = (loops[x] for x in places)
    lead = [loop for i, loop in enumerate(loops) if i not in places]  # of extent one
    outer, inner = sch.split(m, [None, rows])
    sch.reorder(*lead, outer, n, k, inner)
    grid = sch.fuse(*lead, outer) if lead else outer
    operands = [read_index(sch, block, x) for x in (problem.lhs, problem.rhs)]
    row = str(problem.m.iter_var.var.name)
    return DotSite(block, stores, grid, inner, n, k, (operands[0], operands[1]), row)


def _share_out(
    sch: s_tir.Schedule, site: DotSite, shape: DotShape, vector: int, early: bool
) -> Any:
    """Share each sum out between neighbouring threads; return the loop over thread blocks."""
    block = site.block
    n_block, n_group, n_own = sch.split(site.n, [None, shape.groups, shape.columns])
    vectors, element = sch.split(site.k, [None, vector])
    step, chunk, thread = sch.split(vectors, [None, shape.vectors, shape.threads])
    order = [thread, step, chunk, n_own, site.m, element]
    sch.reorder(n_block, n_group, *order)
    part = sch.rfactor(thread, 0)
    axes = _axes_of(sch, part, 3, site.row)
    thread_, step_, chunk_, n_, _, element_ = axes
    a = _keep(sch, part, site.operands[0], [axes[4], step_, chunk_, thread_, element_])
    b = _keep(sch, part, site.operands[1], [n_, step_, chunk_, thread_, element_])
    sch.set_scope(part, 0, "local")

    _, n_block, n_group, thread, n_own, m = sch.get_loops(block)
    sch.reorder(n_own, m, thread)
    sch.bind(n_group, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    pairs = sch.fuse(n_own, m)
    if shape.threads <= THREADS_PER_WARP:  # else sums are added through shared memory, in a loop
        sch.unroll(pairs)

    sch.compute_at(part, n_group, preserve_unit_loops=True)
    loops = list(sch.get_loops(part))[3:]
    inside = [loops[x] for x in axes]
    sch.reorder(*inside)
    sch.bind(inside[0], "threadIdx.x")
    for loop in inside[2:]:
        sch.unroll(loop)
    for copy in (b, a):
        _load_vectors(sch, copy, inside[1], sch.get(part).iter_vars[element_])
    sch.annotate(b, keys.LOAD_HINT, "evict_first")
    if early:
        sch.annotate(b, keys.EARLY_LOADS, 1)

    sch.set_scope(block, 0, "local")
    for store in site.stores:
        sch.reverse_compute_at(store, n_group, preserve_unit_loops=True)
        fuse.fuse_epilogue(sch, store)
        for loop in list(sch.get_loops(store))[3:]:
            sch.unroll(loop)
        _, first = sch.split(sch.add_unit_loop(store), [None, shape.threads])
        sch.bind(first, "threadIdx.x")  # all of them know the sum
    return n_block


def _axes_of(sch: s_tir.Schedule, block: Any, skipped: int, row: str) -> list[int]:
    """Return for each loop around a block but the outer ones which of its axes it moves.

    A loop over one row may move none: TVM's simplifier takes it out of the axis.
    """
    loops, realize = ir.loop_nest(sch.get(next(iter(sch.get_loops(block)))))
    rows = [str(x.var.name) for x in realize.block.iter_vars].index(row)
    values = list(enumerate(realize.iter_values))
    return [
        next((i for i, x in values if ir.depends_on(x, [loop.loop_var])), rows)
        for loop in loops[skipped:]
    ]


def _keep(sch: s_tir.Schedule, block: Any, read: int, axes: list[int]) -> Any:
    """Load an operand into registers, indexed by axes of the block, and inline its pad."""
    node = sch.get(block)
    region = [x.min for x in node.reads[read].region]
    others = [  # of extent one, in front
        i
        for i, x in enumerate(node.iter_vars)
        if i not in axes and ir.is_const(x.dom.extent, 1) and ir.depends_on(region, [x.var])
    ]
    index = IndexMap.from_func(
        lambda *i: [i[x] for x in (*others, *axes)],
        len(node.iter_vars),
        index_dtype=ir.dtype_of(node.iter_vars[0].var),
    )
    copy = sch.reindex_cache_read(block, read, "local", index)
    for producer in sch.get_producers(copy):
        steps.inline_copies(sch, producer)
    return copy


def _load_vectors(sch: s_tir.Schedule, copy: Any, place: Any, axis: Any) -> None:
    """Load an operand in a loop, by vectors along one of the product's axes."""
    sch.compute_at(copy, place, preserve_unit_loops=True)
    names = [str(x.var.name) for x in sch.get(copy).iter_vars]
    loops = list(sch.get_loops(copy))[-len(names) :]
    vector = loops.pop(names.index(str(axis.var.name)))
    sch.reorder(*loops, vector)
    for loop in loops:
        sch.unroll(loop)
    sch.vectorize(vector)
