"""Epilogues that make each element of several of a row: a gate's activation times what it gates.

    C[i, j] += A[i, k] * W[j % 16 // 8, j // 16, j % 8, k]
    D[i, j] = silu(C[i, j // 8 * 16 + j % 8]) * C[i, j // 8 * 16 + 8 + j % 8]

Columns of gate and up stand in eights beside each other: a thread holds both, in any tile of whole
sixteens.  TVM's reverse_compute_inline takes one element for one; here the block moves to the tile,
and reads the accumulator there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.analysis.column_reads import COLUMNS, column_read
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests.targets import chip_of_target

from .classes import ClassKernel, product_of
from .config import split_axis
from .fuse import followers, fuse_side_inputs, inline_block
from .model import SHOWN, rank_both
from .recognize import Matmul, loops_around

READ_REGION = "explicit_read_region"  # TVM's, of annotate_buffer_access
RANKED = 400  # tiles that are looked at, the best first


def find_gather(sch: s_tir.Schedule, block: Any) -> int | None:
    """Return of how many elements the one block behind a product makes each of its own, or None.

    Parameters
    ----------
    sch : Schedule
        Not changed.
    block : SBlockRV
        The multiply-add, in plain loops.
    """
    readers = followers(sch, block)
    if len(readers) != 1 or followers(sch, readers[0]):
        return None
    node, product = sch.get(readers[0]), sch.get(block).writes[0].source
    loads = ir.find_all(node.body, ir.TensorLoad, lambda x: x.source.same_as(product))
    loops = loops_around(sch, readers[0])
    if len(loops) != 2 or len(node.iter_vars) != 2 or any(len(x.indices) != 2 for x in loads):
        return None
    row, column = (x.var for x in node.iter_vars)
    if not all(x.indices[0].same_as(row) for x in loads):
        return None
    at = {column: ir.cast_like(loops[1].loop_var, column)}
    reads = [column_read(ir.substitute(x.indices[1], at), loops[1]) for x in loads]
    found = {(ir.static_int(x.start), x.step) for x in reads if x is not None}
    steps = {step for _, step in found}
    if None in reads or len(found) < 2 or len(steps) != 1:
        return None
    (step,) = steps
    count = step // COLUMNS
    starts = sorted(start for start, _ in found if start is not None)
    whole = ir.is_const(ir.simplify(loops[1].extent * count - product.shape[-1]), 0)
    if not whole or starts != [COLUMNS * i for i in range(count)]:
        return None
    return count


def for_gather(
    problem: Matmul, kernel: ClassKernel, count: int, out_dtype: str
) -> tuple[ClassKernel, list[str]]:
    """Leave a kernel what goes with such an epilogue, and choose a tile of whole groups.

    The best tiles are returned too, a line each; none where one is given.

    Raises
    ------
    ScheduleError
        What was asked for needs an element of the product for each of the output.
    """
    given, where = kernel.config, f"block {problem.name}"
    asked = {
        "transposed=True": given.transposed,
        f"split_k={given.split_k}": given.parts > 1,
        "dots": given.dots,
        "direct": given.direct,
        f"store={given.store!r}": given.store is not None,
        f"cluster={given.cluster}": given.in_cluster,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise cannot_schedule(
                where,
                f"{name}, and {count} elements of a row behind it for each of the output",
                "rows of the product in the rows of a tile that one thread block sums and stores",
                "leave it out, or make the block behind it a kernel of its own",
            )
    config = replace(given, transposed=False, split_k=1, dots=False, direct=False, cluster=(1, 1))
    config = replace(config, operand_slots=0)
    lines: list[str] = []
    if config.tile is None:
        wanted = product_of(problem, kernel, (out_dtype,))
        ranked = rank_both(wanted, config, chip_of_target(), RANKED)
        whole = [x for x in ranked if _is_whole(x.tile, x.consumers, count)]
        lines = [str(x) for x in whole[:SHOWN]]
        if whole:
            best, *_ = whole
            pending = config.wgmma_pending
            pending = best.pending or None if pending is None else pending
            config = replace(
                config, tile=best.tile, consumers=best.consumers, wgmma_pending=pending
            )
    return replace(kernel, config=config), lines


def check_gather(problem: Matmul, tile_n: int, groups: int, count: int) -> None:
    """Refuse a tile that cuts through a group of columns.

    Raises
    ------
    ScheduleError
        Columns of a consumer are no multiple of those of a group.
    """
    if tile_n % (groups * COLUMNS * count):
        raise cannot_schedule(
            f"block {problem.name}",
            f"a tile of {tile_n} columns"
            + (f" for {groups} consumers" if groups > 1 else "")
            + f", of which each output takes {count}, {COLUMNS} columns apart",
            f"multiples of {COLUMNS * count} columns",
            "choose another tile",
        )


def _is_whole(tile: tuple[int, int, int], consumers: int, count: int) -> bool:
    groups = consumers if split_axis(tile[0], tile[1], consumers) == "n" else 1
    return tile[1] % (groups * COLUMNS * count) == 0


def fuse_gather(sch: s_tir.Schedule, store: Any, part: Any, count: int) -> Any:
    """Move the block behind the product to its tile, in place of what stores the accumulator.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    store : SBlockRV
        What `cache_write` of the accumulator returned, already at its loop.
    part : LoopRV
        That loop.
    count : int
        Elements of the product for each of the output.

    Returns
    -------
    store : SBlockRV
        The block, which reads the accumulator and stores the output.
    """
    (reader,) = sch.get_consumers(store)
    while followers(sch, reader):  # the crop of padding
        (following,) = followers(sch, reader)
        inline_block(sch, sch.compute_inline, reader)
        reader = following
    fuse_side_inputs(sch, reader, store)
    product = sch.get(store).writes[0].source
    index = next(i for i, x in enumerate(sch.get(reader).reads) if x.source.same_as(product))
    # The hull of whole groups, which TVM finds no way to from the indices themselves.
    sch.annotate_buffer_access(
        reader, index, "read", lambda i, j: ((i, i + 1), (j * count, j * count + count))
    )
    sch.reverse_compute_at(reader, part)
    sch.unannotate(reader, READ_REGION)
    inline_block(sch, sch.compute_inline, store)
    return reader
