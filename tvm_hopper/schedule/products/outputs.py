"""Several outputs of one product: each computed from the product alone.

    P[i, j] = C[i, j] + bias[j]                         needed in memory, and read on
    D[i, j] = relu(P[i, j])
  ->
    P[i, j] = C[i, j] + bias[j]
    D[i, j] = relu(C[i, j] + bias[j])

so that both can be computed from the accumulator, in registers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir as tvm_ir, s_tir, sym, tirx
from tvm.sym.iter_affine_map import IterMapLevel
from tvm.tirx import IndexMap

from tvm_hopper import ir
from tvm_hopper.analysis.column_reads import COLUMNS, ColumnSegment, read_columns
from tvm_hopper.errors import ScheduleError, cannot_schedule
from tvm_hopper.facts.wgmma import MAX_N
from tvm_hopper.schedule.reasons import TVM_ERRORS
from tvm_hopper.schedule.trial import as_one_step, twin

from .fuse import (
    check_one_use,
    followers,
    fuse_side_inputs,
    hide_own_output,
    inline_block,
    is_needed,
    wraps,
)


def _with_followers(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Return a product and all blocks after it that are no kernels of their own."""
    seen: list[Any] = []
    todo = [block]
    while todo:
        current = todo.pop()
        if any(sch.get(current).same_as(sch.get(x)) for x in seen):
            continue
        seen.append(current)
        todo += followers(sch, current)
    return seen


def output_dtypes(sch: s_tir.Schedule, block: Any) -> tuple[str, ...]:
    """List the types of the tensors that a product and the blocks after it leave in memory."""
    seen = _with_followers(sch, block)
    left = [x for x in seen if not followers(sch, x) or is_needed(sch, x)]
    return tuple(ir.dtype_of(sch.get(x).writes[0].source) for x in left)


def check_operands_stay(reader: Any, problems: Sequence[Any], where: str) -> None:
    """Refuse an output that is an operand: other tiles still read that."""
    output = reader.writes[0].source
    if any(output.same_as(x.buffer) for one in problems for x in (one.lhs, one.rhs)):
        found = f"block {reader.name_hint}, which writes {output.name}, an operand of them"
        fix = "write another tensor, and copy that in a separate kernel"
        raise cannot_schedule(where, found, "a separate output", fix)


@dataclass(frozen=True)
class Gather:
    """Epilogues that take several elements of a row of the product for each of their own.

    - `count`: columns of the product for each of the output.
    - `columns`: a tile of whole multiples of these holds all that its outputs take.
    - `starts`: by the output's tensor: the product's column that belongs to its first one.
    """

    count: int
    columns: int
    starts: tuple[tuple[Any, int], ...]

    def start(self, output: Any) -> int:
        """Return the product's column that belongs to the first one of an output."""
        return next(start for x, start in self.starts if x.same_as(output))


def find_gather(sch: s_tir.Schedule, block: Any) -> Gather | None:
    """Make one block for each output of a product if some take several elements of a row.

    - `sch`: changed in place, unless None is returned: no output takes several.
    - `block` (SBlockRV): the multiply-add, in plain loops.
    - raises ScheduleError: a thread does not hold all that an output takes, in any tile.
    """
    if not _any_takes_several(sch, block):
        return None
    readers = _join_readers(sch, block)
    product = sch.get(block).writes[0].source
    several = [with_plain_indices(sch.get(x)) for x in readers if takes_several(sch, block, x)]
    found = [_columns_taken(x, product) for x in several]
    count, columns = found[0][0], math.lcm(*(x for _, x, _ in found))
    if columns > MAX_N or (len(readers) > 1 and any(x > 1 for x, _, _ in found)):
        raise _not_in_a_tile(several[0], product)
    starts = zip(several, found, strict=True)
    return Gather(count, columns, tuple((x.writes[0].source, y) for x, (_, _, y) in starts))


def with_plain_indices(block: Any) -> Any:
    """Simplify a block's indices by what its variables run over: of j below N, j % N is j."""
    analyzer = sym.Analyzer()
    for x in block.iter_vars:
        analyzer.bind(x.var, x.dom)

    def load(node: ir.TensorLoad, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        return tirx.BufferLoad(node.source, [analyzer.simplify(x) for x in node.indices])

    def touch(node: ir.TensorRegion, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        ranges = [
            tvm_ir.Range.from_min_extent(*map(analyzer.simplify, (x.min, x.extent)))
            for x in node.region
        ]
        return tirx.BufferRegion(node.source, ranges)

    return ir.mutate(block, [(ir.TensorLoad, load), (ir.TensorRegion, touch)])


def _any_takes_several(sch: s_tir.Schedule, block: Any) -> bool:
    """Tell whether an output takes several elements of a product, once nothing is between them."""
    after = _with_followers(sch, block)
    made = [sch.get(x).writes[0].source for x in after]
    loads = [
        load
        for x in after[1:]
        for load in ir.find_all(sch.get(x).body, ir.TensorLoad)
        if any(load.source.same_as(y) for y in made)
    ]
    if all(isinstance(x, ir.Var) for load in loads for x in load.indices):
        return False
    trial, same = twin(sch)
    try:
        with as_one_step():
            readers = _join_readers(trial, same(block))
    except ScheduleError:  # said again where each block is inlined
        return False
    return any(takes_several(trial, same(block), x) for x in readers)


def takes_several(sch: s_tir.Schedule, block: Any, reader: Any) -> bool:
    """Tell whether a block takes elements of several places of what another one writes."""
    return len({str(list(x.indices)) for x in _loads(sch.get(reader), sch.get(block))}) > 1


def _loads(node: Any, maker: Any) -> list[Any]:
    made = maker.writes[0].source
    return ir.find_all(node.body, ir.TensorLoad, lambda x: x.source.same_as(made))


def _columns_taken(node: Any, product: Any) -> tuple[int, int, int]:
    """Return the columns of a product for each of an output, of a group of them, and the first."""
    axes = [x.var for x in node.iter_vars]
    loads = ir.find_all(node.body, ir.TensorLoad, lambda x: x.source.same_as(product))
    if any(not _is_own_row(list(x.indices), axes) for x in loads):
        raise _not_in_a_tile(node, product)
    extent = node.iter_vars[-1].dom.extent
    loop = ir.For(axes[-1], 0, extent, ir.ForKind.SERIAL, ir.seq())
    found = read_columns(node.body.value, lambda x: x.source.same_as(product), loop)
    if found.stray is not None or ir.static_int(product.shape[-1]) is None:
        raise _not_in_a_tile(node, product, found.stray)
    shifts = [ir.static_int(ir.simplify(x.indices[-1] - axes[-1])) for x in loads]
    ways = [(1, x) for x in dict.fromkeys(shifts) if x is not None and x % COLUMNS == 0]
    ways = ways or [(int(product.shape[-1]) // int(extent), 0)]
    for columns in range(COLUMNS, MAX_N + 1, COLUMNS):
        for count, start in ways:
            if columns % (COLUMNS * count) == 0 and all(
                _is_within(x, columns // count, columns, start) for x in found.segments
            ):
                return count, columns, start
    far = max(found.segments, key=lambda x: len(x.reads)).reads
    raise _not_in_a_tile(node, product, next(reversed(far)))


def _is_own_row(indices: list[Any], axes: list[Any]) -> bool:
    """Tell whether an element of a product is in the row of the element that a block makes."""
    pairs = zip(indices[:-1], axes[:-1], strict=False)
    return len(indices) == len(axes) and all(x.same_as(y) or ir.is_const(x, 0) for x, y in pairs)


def _is_within(segment: ColumnSegment, own: int, read: int, start: int) -> bool:
    """Tell whether the n-th `own` columns, counted from `start`, read only the n-th `read`."""
    places = range(segment.begin, segment.end, COLUMNS)
    if any(ir.static_int(x.start) is None for x in segment.reads.values()):
        return False
    return all(
        (at + start) // own == (int(x.start) + x.step * i) // read
        for x in segment.reads.values()
        for i, at in enumerate(places)
    )


def _not_in_a_tile(node: Any, product: Any, column: Any = None) -> ScheduleError:
    loads = ir.find_all(node.body, ir.TensorLoad, lambda x: x.source.same_as(product))
    load = next((x for x in loads if str(x.indices[-1]) == str(column)), loads[-1])
    return cannot_schedule(
        f"block {node.name_hint}",
        f"reads of {load.source.name}{list(loads[0].indices)} and "
        f"{load.source.name}{list(load.indices)}",
        "one element of the product for each element of the output, or several that one thread "
        f"holds: of a row, a multiple of {COLUMNS} columns apart, or the two of a pair (2 j, "
        f"2 j + 1), within {MAX_N} columns",
        "make the block a separate kernel: bind its loops to threads",
    )


def _join_readers(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Make one block for each output of a product, in its rows and columns; return them."""
    _inline_between(sch, block, lambda x: None)
    shape = sch.get(block).writes[0].source.shape
    kept = [d for d, n in enumerate(shape) if d >= len(shape) - 2 or not ir.is_const(n, 1)]
    readers = followers(sch, block)
    if len(kept) < len(shape) and not is_needed(sch, block):  # a batch of one
        rows = IndexMap.from_func(
            lambda *i: [i[d] for d in kept], ndim=len(shape), index_dtype="int32"
        )
        sch.transform_layout(block, ("write", 0), rows)
    for reader in readers:
        fuse_side_inputs(sch, reader, block)
        _use_rows_and_columns(sch, block, reader)
    return readers


def _use_rows_and_columns(sch: s_tir.Schedule, block: Any, reader: Any) -> None:
    """Let the axes of a block be those of the product, (b s, h d) in place of (b, h, s, d)."""
    node = sch.get(reader)
    axes = {x.var: x.dom for x in node.iter_vars}
    for load in _loads(node, sch.get(block)):
        if len(axes) == len(load.indices) and load.indices[-2].same_as(node.iter_vars[-2].var):
            return
        start = dict.fromkeys(axes, 0)  # of a part of the columns
        place = [ir.simplify(x - ir.substitute(x, start)) for x in load.indices]
        exact = sym.detect_iter_map(place, axes, True, IterMapLevel.Bijective)
        if len(exact.indices) == len(place) and not any(map(wraps, place)):
            dtype = ir.dtype_of(node.iter_vars[0].var)
            at = [ir.Var(x.name, dtype) for x in axes]
            values = dict(zip(axes, at, strict=True))
            rows = IndexMap(at, [ir.substitute(x, values) for x in place], None)
            with contextlib.suppress(*TVM_ERRORS):  # rows that are left out, as of C[2 i, j]
                sch.transform_block_layout(reader, rows)
            return


def _inline_between(sch: s_tir.Schedule, block: Any, check: Callable[[Any], None]) -> None:
    """Inline what lies between a product and its outputs, after `check` of each block."""
    while middle := [b for b in followers(sch, block) if followers(sch, b)]:
        current = middle[0]
        check(current)
        fuse_side_inputs(sch, current, block)
        if is_needed(sch, current):
            sch.cache_write(current, 0, "global", consumer_blocks=followers(sch, current))
        inline_block(sch, sch.compute_inline, current)


def separate_outputs(sch: s_tir.Schedule, block: Any) -> list[Any]:
    """Inline what lies between a product and its outputs; return the outputs' blocks.

    - `block` (SBlockRV): the multiply-add.
    - raises ScheduleError: TVM cannot inline a block, or one that reads the product does not read
      each element once.
    """
    _inline_between(sch, block, lambda x: check_one_use(sch, block, x))
    outputs = followers(sch, block)
    for output in outputs:
        if not takes_several(sch, block, output):  # find_gather has looked at those
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

    - `sch`: it is left as it is.
    - `stores` (list of SBlockRV): the blocks that store what the product summed, with their
      epilogues.
    - `asked`: what the configuration says.
    """
    if asked is not None:
        return bool(asked)
    loaded = [x.source for store in stores for x in sch.get(store).reads]
    return all(str(x.scope()) not in ("", "global") for x in loaded)
