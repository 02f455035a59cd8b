"""Several outputs of one product: each computed from the product alone.

    P[i, j] = C[i, j] + bias[j]                         needed in memory, and read on
    D[i, j] = relu(P[i, j])
  ->
    P[i, j] = C[i, j] + bias[j]
    D[i, j] = relu(C[i, j] + bias[j])

so that both can be computed from the accumulator, in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.analysis.column_reads import COLUMNS, column_read
from tvm_hopper.errors import cannot_schedule

from .fuse import (
    check_one_use,
    followers,
    fuse_side_inputs,
    hide_own_output,
    inline_block,
    is_needed,
)
from .recognize import loops_around


def output_dtypes(sch: s_tir.Schedule, block: Any) -> tuple[str, ...]:
    """List the types of the tensors that a product and the blocks after it leave in memory."""
    seen: list[Any] = []
    todo = [block]
    while todo:
        current = todo.pop()
        if any(sch.get(current).same_as(sch.get(x)) for x in seen):
            continue
        seen.append(current)
        todo += followers(sch, current)
    left = [x for x in seen if not followers(sch, x) or is_needed(sch, x)]
    return tuple(ir.dtype_of(sch.get(x).writes[0].source) for x in left)


def check_operands_stay(reader: Any, problems: Sequence[Any], where: str) -> None:
    """Refuse an output that is an operand: other tiles still read that."""
    output = reader.writes[0].source
    if any(output.same_as(x.buffer) for one in problems for x in (one.lhs, one.rhs)):
        found = f"block {reader.name_hint}, which writes {output.name}, an operand of them"
        fix = "write another tensor, and copy that in a separate kernel"
        raise cannot_schedule(where, found, "a separate output", fix)


def find_gather(sch: s_tir.Schedule, block: Any) -> int | None:
    """Return of how many elements the one block after a product makes each of its own, or None.

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


def separate_outputs(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Inline what lies between a product and its outputs; return the outputs' blocks.

    Parameters
    ----------
    sch : Schedule
        Changed in place.
    block : SBlockRV
        The multiply-add.

    Raises
    ------
    ScheduleError
        TVM cannot inline a block, or one that reads the product does not read each element once.
    """
    while middle := [b for b in followers(sch, block) if followers(sch, b)]:
        current = middle[0]
        check_one_use(sch, block, current)
        fuse_side_inputs(sch, current, block)
        if is_needed(sch, current):
            sch.cache_write(current, 0, "global", consumer_blocks=followers(sch, current))
        inline_block(sch, sch.compute_inline, current)
    outputs = followers(sch, block)
    for output in outputs:
        check_one_use(sch, block, output)
        fuse_side_inputs(sch, output, block)
        hide_own_output(sch, output)
    return outputs


def keep_in_registers(sch: s_tir.Schedule, block: Any, outputs: list[Any]) -> list[Any]:
    """Let a product write registers, and give each output a store of its own; return the stores.

    Each store covers whole tiles, as the store of a single output does, and `fuse_epilogue` makes
    the output's block part of it.
    """
    readers = [None, *outputs] if is_needed(sch, block) else list(outputs)
    stores: list[Any] = []
    for number in range(1, len(readers) + 1):
        scope = "local" if number == len(readers) else "global"
        others = [*stores, *readers[number:]]  # read what the product writes from here on
        stores.append(sch.cache_write(block, 0, scope, consumer_blocks=others))
    return stores


def starts_early(sch: s_tir.Schedule, stores: list[Any], asked: bool | str | None) -> bool:
    """Decide whether a kernel begins while the launch before it ends.

    What an epilogue loads would have to stay in order then, and take longer: unless it is asked
    for, such a kernel is launched as usual.

    Parameters
    ----------
    sch : Schedule
        It is left as it is.
    stores : list of SBlockRV
        The blocks that store what the product summed, with their epilogues.
    asked : bool, str or None
        What the configuration says.
    """
    if asked is not None:
        return bool(asked)
    loaded = [x.source for store in stores for x in sch.get(store).reads]
    return all(str(x.scope()) not in ("", "global") for x in loaded)
