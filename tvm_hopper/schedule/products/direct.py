"""Products of few rows by mma.sync: warps load their operands directly.

    C[i, j] += A[i, k] * B[j, k]                                       few i
  ->
  blockIdx.y          tiles of rows
    blockIdx.x          tiles of columns: rows of B
      threadIdx.y         warps, which share the sum
        for k0:
          load A, load B    to registers, as mma.sync takes them
          own += A * B      float32, in registers
        sums[warp] = own    in shared memory
      C = sum of sums       by all threads, an element each
      store                 with the epilogue

B may as well run along its columns, A too.  Tiles by WGMMA go through shared memory, which takes a
ring, barriers and a producer to start; here a thread block begins with its loads.  The order of a
sum is fixed, and another one than that of a single accumulator.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.facts.programming_model import THREADS_PER_WARP
from tvm_hopper.requests import keys
from tvm_hopper.schedule import steps

from . import fuse
from .direct_shape import DirectShape
from .narrow_operands import find_decoder
from .outputs import keep_in_registers, separate_outputs
from .recognize import Matmul, find_matmul, read_index
from .thread_rates import ThreadKernel
from .wide_sums import widen_product


def apply_direct(
    sch: s_tir.Schedule, block: Any, known: Matmul, kernel: ThreadKernel[DirectShape], outputs: int
) -> Any:
    """Schedule a product whose warps load what they multiply.

    - `block` (SBlockRV): the multiply-add, in plain loops; its casts are inlined.
    - `outputs`: tensors that the kernel leaves in memory.
    - returns (SBlockRV): the block that adds up what warps have summed.
    """
    shape = kernel.shape
    if kernel.is_narrow:
        block = widen_product(sch, block)
    whole = kernel.rows, shape.columns, shape.warps * shape.depth
    problem = steps.pad_matmul(sch, block, find_matmul(sch, block, known), whole)
    if outputs > 1:
        stores = keep_in_registers(sch, block, separate_outputs(sch, block))
    else:
        stores = [sch.cache_write(block, 0, "local")]
    loops = list(sch.get_loops(block))
    places = [a.loop for a in (problem.m, problem.n, problem.k)]
    m, n, k = (loops[x] for x in places)
    lead = [loop for i, loop in enumerate(loops) if i not in places]  # of extent one
    m_outer, m_inner = sch.split(m, [None, kernel.rows])
    n_outer, n_inner = sch.split(n, [None, shape.columns])
    k_outer, warp, k_inner = sch.split(k, [None, shape.warps, shape.depth])
    sch.reorder(*lead, m_outer, n_outer, warp, m_inner, n_inner, k_outer, k_inner)
    if lead:
        sch.fuse(*lead, m_outer)
    operands = [read_index(sch, block, x) for x in (problem.lhs, problem.rhs)]
    part = sch.rfactor(warp, 0)
    handed_on = sch.cache_write(part, 0, "local")
    sch.set_scope(handed_on, 0, "shared")
    sch.set_scope(block, 0, "local")
    grid, n_outer, *_ = sch.get_loops(block)
    sch.bind(grid, "blockIdx.y")  # TVM binds nothing around the conditions that come with a crop
    sch.bind(n_outer, "blockIdx.x")
    _add_up(sch, block, stores, shape, kernel.rows)
    adding, _ = shape.adding(kernel.rows)
    _multiply(sch, part, handed_on, n_outer, operands, kernel.early, adding)
    kernel.note(sch, n_outer, keys.FRAGMENTS)
    return block


def _add_up(
    sch: s_tir.Schedule, block: Any, stores: list[Any], shape: DirectShape, kernel_rows: int
) -> None:
    """Let each thread add up elements of the tile, and store them."""
    *_, warp, m, n = sch.get_loops(block)
    sch.reorder(m, n, warp)
    adding, idle = shape.adding(kernel_rows)
    _, number, lane = sch.split(sch.fuse(m, n), [None, adding, THREADS_PER_WARP])
    sch.bind(number, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    for store in stores:
        sch.reverse_compute_at(store, lane, preserve_unit_loops=True)
        fuse.fuse_epilogue(sch, store)
        if idle > 1:  # more warps than have elements of their own: they know the same sums
            _, first = sch.split(sch.add_unit_loop(store), [None, idle])
            sch.bind(first, "threadIdx.z")


def _multiply(
    sch: s_tir.Schedule,
    part: Any,
    handed_on: Any,
    place: Any,
    operands: list[int],
    early: bool,
    adding: int,
) -> None:
    """Compute the warps' parts of the sums in a loop, and hand them on."""
    sch.compute_at(handed_on, place, preserve_unit_loops=True)
    warp, *_ = list(sch.get_loops(handed_on))[2:]
    groups, warp = sch.split(warp, [None, adding])
    if ir.is_const(sch.get(groups).extent, 1):
        warp = sch.fuse(groups, warp)
    else:
        sch.bind(groups, "threadIdx.z")
    sch.bind(warp, "threadIdx.y")
    sch.compute_at(part, warp, preserve_unit_loops=True)
    *_, m, n, k_outer, k_inner = sch.get_loops(part)
    sch.reorder(k_outer, m, n, k_inner)
    a, b = (sch.cache_read(part, x, "local") for x in operands)
    for copy in (b, a):  # what takes longest first
        for producer in sch.get_producers(copy):
            steps.inline_copies(sch, producer)
        for producer in sch.get_producers(copy):
            if find_decoder(sch.get(producer)) is not None:  # lanes decode what they load
                sch.compute_inline(producer)
        sch.compute_at(copy, k_outer)
    sch.annotate(b, keys.LOAD_HINT, "evict_first")
    if early:
        sch.annotate(b, keys.EARLY_LOADS, 1)
    sch.decompose_reduction(part, k_outer)
    sch.annotate(sch.blockize(m), keys.MMA_SYNC, 1)
