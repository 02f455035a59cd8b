"""Schedules for Ampere in the forms of TVM's tests, at any size, for tests and benchmarks.

Nothing here has a word of this package: TVM builds each with `tirx.use_async_copy`, and under the
option `tvm_hopper.async_copy` it is built for a chip of Hopper or of Ampere.
"""

# mypy: disable-error-code="valid-type"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

from tvm_hopper.codegen_patches.ptx import cp_async

from . import neighbors
from .pointwise import BLOCK
from .tiling import cut, deal_out, module_of

COLUMNS_OF_ROWS, ROWS_OF_BLOCK = 128, 32


@dataclass(frozen=True)
class Form:
    """How a program is cut up.

    - `tile`: elements of one iteration of the pipeline.
    - `steps`: trips of a thread block, tiles one below the other.
    - `threads`: threads of a block.
    - `chunk`, `vector`: elements that one thread copies at once, and that it computes at once.
    - `stages`: of the pipeline.
    - `store`: elements that one thread copies out at once, from a tile of what was computed; None:
      what is computed goes to global memory.
    """

    tile: tuple[int, int]
    steps: int = 8
    threads: int = 256
    chunk: int = 4
    vector: int = 4
    stages: int = 4
    store: int | None = None


def scaled(rows: int, columns: int, form: Form, dtype: str = "float32") -> tvm.IRModule:
    """Schedule C = 2 A."""
    a = te.placeholder((rows, columns), dtype, name="A")
    c = te.compute(a.shape, lambda i, j: a[i, j] * te.const(2, dtype), name=BLOCK)
    return _scheduled(module_of(a, c), form)


def five_point(rows: int, columns: int, form: Form) -> tvm.IRModule:
    """Schedule the stencil of `neighbors`, each element from those next to it.

    A has two rows and four columns more than C, whose number is a multiple of 4: its rows are some
    times 16 bytes, and one more column than C has is read on either side.
    """
    return _scheduled(neighbors.five_point(rows, columns, spare=4), form)


def _scheduled(mod: tvm.IRModule, form: Form) -> tvm.IRModule:
    sch = s_tir.Schedule(mod)
    tile = sch.cache_read(BLOCK, 0, "shared")
    blocks, k0, inner = cut(sch, sch.get_loops(BLOCK), form.tile, form.steps)
    sch.bind(sch.fuse(*blocks), "blockIdx.x")
    sch.compute_at(tile, k0)
    deal_out(sch, sch.get_loops(tile)[-2:], form.threads, form.chunk)
    if form.store is not None:
        out = sch.cache_write(BLOCK, 0, "shared")
        sch.reverse_compute_at(out, k0)
        deal_out(sch, sch.get_loops(out)[-2:], form.threads, form.store)
    deal_out(sch, inner, form.threads, form.vector)
    parts = 2 if form.store is None else 3
    sch.annotate(k0, "software_pipeline_stage", [0] + [form.stages - 1] * (parts - 1))
    sch.annotate(k0, "software_pipeline_order", list(range(parts)))
    sch.annotate(k0, "software_pipeline_async_stages", [0])
    return sch.mod


def rows(blocks: int, dtype: str, width: int, doubled: bool = False) -> tvm.IRModule:
    """Copy a row for each thread through shared memory, as `inject_async_copy` of TVM's tests.

    The copy waits for itself; it is made by `width` elements at once, and out by one. If `doubled`,
    the row is doubled in shared memory before.
    """
    count, steps = blocks * ROWS_OF_BLOCK, COLUMNS_OF_ROWS // width
    commit, wait = cp_async.commit_group(), cp_async.wait_group(0)

    @T.prim_func(s_tir=True)
    def vectors(
        A: T.Buffer((count, COLUMNS_OF_ROWS), dtype), B: T.Buffer((count, COLUMNS_OF_ROWS), dtype)
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        bx = T.env_thread("blockIdx.x")
        tx = T.env_thread("threadIdx.x")
        T.launch_thread(bx, blocks)
        T.launch_thread(tx, ROWS_OF_BLOCK)
        with T.sblock():
            a = T.sblock_alloc_buffer((ROWS_OF_BLOCK, COLUMNS_OF_ROWS), dtype, scope="shared")
            if doubled:
                b = T.sblock_alloc_buffer((ROWS_OF_BLOCK, COLUMNS_OF_ROWS), dtype, scope="shared")
            T.reads(A[bx * 32 : bx * 32 + 32, 0:128])
            T.writes(B[bx * 32 : bx * 32 + 32, 0:128])
            T.attr("default", "async_scope", 1)
            for i in range(steps):
                for j in T.vectorized(width):
                    a[tx, i * width + j] = A[bx * 32 + tx, i * width + j]
            T.evaluate(commit)
            T.evaluate(wait)
            if doubled:
                for i in range(128):
                    b[tx, i] = a[tx, i] * tirx.const(2, dtype)
                for i in range(128):
                    B[bx * 32 + tx, i] = b[tx, i]
            else:
                for i in range(128):
                    B[bx * 32 + tx, i] = a[tx, i]

    return tvm.IRModule({"main": vectors})


def doubled_rows(blocks: int) -> tvm.IRModule:
    """Copy a row for each thread to shared memory, double it there, and copy it out by elements."""
    return rows(blocks, "float32", 4, doubled=True)


def stencil_rows(blocks: int, tile: bool = False) -> tvm.IRModule:
    """Compute the stencil of `five_point`, a row for each thread, in the form of `doubled_rows`.

    Thread blocks copy two rows more than they compute. A has two rows and two columns more than B.
    With `tile` the stencil goes to a second tile, and from there to B, as doubled rows do.
    """
    rows, width = ROWS_OF_BLOCK - 2, COLUMNS_OF_ROWS - 2
    commit, wait = cp_async.commit_group(), cp_async.wait_group(0)

    def value(a: Any, row: Any, i: Any) -> Any:
        around = a[row, i + 1] + a[row + 1, i] + a[row + 1, i + 2] + a[row + 2, i + 1]
        return around * T.float32(0.25) + a[row + 1, i + 1]

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((blocks * rows + 2, COLUMNS_OF_ROWS), "float32"),
        B: T.Buffer((blocks * rows, width), "float32"),
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        bx = T.env_thread("blockIdx.x")
        tx = T.env_thread("threadIdx.x")
        T.launch_thread(bx, blocks)
        T.launch_thread(tx, ROWS_OF_BLOCK)
        with T.sblock():
            a = T.sblock_alloc_buffer((ROWS_OF_BLOCK, COLUMNS_OF_ROWS), "float32", scope="shared")
            if tile:
                b = T.sblock_alloc_buffer((rows, width), "float32", scope="shared")
            T.reads(A[bx * rows : bx * rows + ROWS_OF_BLOCK, 0:COLUMNS_OF_ROWS])
            T.writes(B[bx * rows : bx * rows + rows, 0:width])
            T.attr("default", "async_scope", 1)
            for i in range(32):
                for j in T.vectorized(4):
                    a[tx, i * 4 + j] = A[bx * rows + tx, i * 4 + j]
            T.evaluate(commit)
            T.evaluate(wait)
            if tile:
                if tx < rows:
                    for i in range(width):
                        b[tx, i] = value(a, tx, i)
                if tx < rows:
                    for i in range(width):
                        B[bx * rows + tx, i] = b[tx, i]
            elif tx < rows:
                for i in range(width):
                    B[bx * rows + tx, i] = value(a, tx, i)

    return tvm.IRModule({"main": func})


def columns(blocks: int, threads: int, trips: int, pad: bool = False) -> tvm.IRModule:
    """Add two tensors by columns, a row for each thread, as `async_producer_interleaving`.

    With `pad` between two columns of zeros, as `cp_async_in_if_then_else`.
    """
    count = blocks * threads
    width = trips - 2 if pad else trips
    notes = {
        "software_pipeline_stage": [0, 0, 3],
        "software_pipeline_order": [0, 2, 1],
        "software_pipeline_async_stages": [0],
    }

    attributes = {"global_symbol": "main", **({"tirx.noalias": True} if pad else {})}

    def value(tensor: Any, row: Any, i: Any) -> Any:
        if not pad:
            return tensor[row, i]
        inside = tirx.And(i >= 1, i < trips - 1)
        return T.if_then_else(inside, tensor[row, i - 1], T.float32(0))

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((count, width), "float32"),
        B: T.Buffer((count, width), "float32"),
        C: T.Buffer((count, trips), "float32"),
    ):
        T.func_attr(attributes)
        for bx in T.thread_binding(blocks, thread="blockIdx.x"):
            for tx in T.thread_binding(threads, thread="threadIdx.x"):
                for i in T.serial(trips, annotations=notes):
                    with T.sblock("compute"):
                        a = T.sblock_alloc_buffer((threads, 1), scope="shared")
                        b = T.sblock_alloc_buffer((threads, 1), scope="shared")
                        with T.sblock("a"):
                            a[tx, 0] = value(A, bx * threads + tx, i)
                        with T.sblock("b"):
                            b[tx, 0] = value(B, bx * threads + tx, i)
                        with T.sblock("sum"):
                            C[bx * threads + tx, i] = a[tx, 0] + b[tx, 0]

    return tvm.IRModule({"main": func})
