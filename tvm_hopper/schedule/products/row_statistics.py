"""Schedule a product whose kernel reduces the rows of its output, too.

    C[i, j] += A[i, k] * B[j, k]
    D[i, j] = f(C[i, j])
    Q[i] += D[i, j] * D[i, j]
  ->
    kernel 1, for each tile of columns t:
        accumulator = 0; for k0: ...
        for i, j: P_local[i] += f(accumulator[i, j]) ** 2           in registers, by shuffles
        for i: P[t, i] = P_local[i]
        store D
    kernel 2:
        for i, t: Q[i] += P[t, i]

Each sum has one order, and no thread block waits for another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.analysis.column_reads import COLUMNS
from tvm_hopper.errors import cannot_schedule

from . import fuse
from .classes import ClassKernel, check_symbolic, product_of
from .converted import check_none_converted
from .field_values import THREADS, UNTRANSPOSED
from .fit import fit
from .gather import choose_tile
from .operands import operand_dtypes
from .outputs import check_operands_stay, output_dtypes
from .recognize import check_operands, check_outputs, check_product, find_matmul, loops_around
from .staging import EpilogueTypes
from .tile_kernel import RowReduction, TilePlan, apply_tiles

NEED = "a product, and reductions over rows of what it stores"
FIX = "schedule the reductions as kernels of their own"
ROWS = 128  # of a thread block of the second kernel


def blocks_after(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Return the blocks that read what a block writes, or what is computed from it."""
    found: list[Any] = []
    todo = [block]
    while todo:
        for one in map(sch.get, sch.get_consumers(todo.pop())):
            if not any(map(one.same_as, found)):
                found.append(one)
                todo.append(sch.get_sblock(one.name_hint))
    return found


def are_reductions(sch: s_tir.Schedule, blocks: Sequence[Any]) -> bool:
    """Tell whether the first of some blocks is a product and the others reduce what it computes.

    Another product does not: it has rows and columns of its own.
    """
    first, *others = blocks
    after = blocks_after(sch, first)
    return all(any(map(sch.get(x).same_as, after)) and not _is_product(sch.get(x)) for x in others)


def _is_product(block: ir.SBlock) -> bool:
    kinds = [x.iter_type for x in block.iter_vars]
    rows, sums = (kinds.count(x) for x in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce))
    return rows > 1 and sums > 0


def apply_with_rows(sch: s_tir.Schedule, blocks: list[Any], kernel: ClassKernel, where: str) -> Any:
    """Schedule a product and reductions over its rows; return the product's block."""
    block, *reductions = blocks
    config = kernel.config
    if name := _excluded(config):
        raise cannot_schedule(
            where, name, "whole sums of a tile in one thread block", "leave it out"
        )
    check_product(sch, block)
    fuse.fuse_prologue(sch, block)
    problem = find_matmul(sch, block)
    check_operands(problem, config)
    check_none_converted(sch, block, problem)
    if not isinstance(problem.n.extent, int):
        found = f"{problem.n.extent} columns"
        raise cannot_schedule(where, found, "a number that is known: a tile divides it")
    if kernel.rows is not None:
        check_symbolic(problem, kernel.rows)
    for reduction in reductions:
        _check_reduction(sch, reduction, problem.n.extent)
    for one in blocks_after(sch, block):
        check_operands_stay(one, [problem], where)
    epilogue = EpilogueTypes(output_dtypes(sch, block), operand_dtypes(sch, block))
    check_outputs(problem, epilogue.outputs)
    wanted = product_of(problem, kernel, epilogue.outputs)
    config = replace(config, form=UNTRANSPOSED, split_k=1)
    if epilogue.operands:  # the reductions read them, too, from where the threads do
        if config.by_tma:
            found = f"store={config.store!r}, and a tensor of the output's shape that is read"
            raise cannot_schedule(where, found, "threads that load it", 'request store="threads"')
        config = replace(config, store=THREADS)
    config, lines = choose_tile(wanted, config, COLUMNS, columns=problem.n.extent)
    if config.tile is None:
        found = f"{problem.n.extent} columns"
        raise cannot_schedule(where, found, "a number that a tile divides: a multiple of 8")
    config, axis = fit(sch, problem, replace(kernel, config=config), epilogue)
    assert config.tile is not None
    if problem.n.extent % config.tile[1]:
        found = f"a tile of {config.tile[1]} columns of {problem.n.extent}"
        raise cannot_schedule(where, found, "a tile that divides them: a row ends with its tile")
    rows = [
        RowReduction(x, sch.cache_read(x, _place(sch, x), "global", consumer_blocks=[x]))
        for x in reductions
    ]
    plan = TilePlan(config, axis, None, kernel.config.operand_slots, "\n".join(lines), [])
    product = apply_tiles(sch, block, problem, plan, len(epilogue.outputs), rows)
    for reduction in reductions:
        row, _ = sch.get_loops(reduction)
        blocks_of_rows, thread = sch.split(row, [None, ROWS])
        sch.bind(blocks_of_rows, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
    return product


def _excluded(given: Any) -> str:
    """Return what of a configuration does not go with reductions of rows, empty if all does."""
    asked = {
        f"form={given.form!r}": given.transposed or not given.has_tiles,
        f"split_k={given.split_k!r}": given.shares_sums,
    }
    return next((name for name, is_asked in asked.items() if is_asked), "")


def _place(sch: s_tir.Schedule, reduction: Any) -> int:
    """Return which read of a reduction is of elements of rows and columns."""
    reads = sch.get(reduction).reads
    return next(i for i, x in enumerate(reads) if len(x.source.shape) > 1)


def _check_reduction(sch: s_tir.Schedule, reduction: Any, columns: Any) -> None:
    """Refuse a block that does not reduce all columns of one tensor, row by row."""
    node, loops = sch.get(reduction), loops_around(sch, reduction)
    kinds = [x.iter_type for x in node.iter_vars]
    plain = [tirx.IterVar.DataPar, tirx.IterVar.CommReduce]
    whole = [x for x in node.reads if len(x.source.shape) > 1]
    own = [str(x.var) for x in node.iter_vars]
    loads = ir.find_all(node.body, ir.TensorLoad, lambda x: len(x.source.shape) > 1)
    in_place = all(list(map(str, x.indices)) == own for x in loads)
    is_whole = len(loops) == 2 and ir.is_const(ir.simplify(loops[1].extent - columns), 0)
    if kinds != plain or len(whole) != 1 or not is_whole or not in_place:
        names = ", ".join(x.source.name for x in whole) or "no tensor"
        raise cannot_schedule(
            f"block {node.name_hint}",
            f"{len(kinds)} loops that reduce {names}",
            f"a loop over rows and one over all {columns} columns of one tensor of these, in order",
            FIX,
        )
