"""Attention of TVM's paged cache: what its kernels compute, as rows, keys and masks.

    batch_prefill_ragged_kv(q, q_indptr, k, v, kv_indptr, ..., output, lse, causal, ..., sm_scale)
  ->
    tile t of the table, head h:
    S[i, j] = q[query[t] + i, h, :] k[first_key[t] + j, h // 4, :]
    masked unless j < min(keys[t], diagonal[t] + i)
    output, lse = softmax with one more score of -5e4, its log-sum-exp in base 2

TVM's running maximum begins at -5e4 and its denominator at 1: that is one more key without a value.
Keys of paged kernels lie in `pages[page_values[first_key[t] + j // 16], 0, h // 4, j % 16]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .cache_arguments import DECODE, RAGGED, CacheArguments
from .description import Attention, KeyLimits, LoopAxis, States, StoredResult
from .scores import constant
from .tile_table import TileTable

INT32 = "int32"
NO_KEY = -5e4  # log-sum-exp, in base 2, of a row without a key
ALL_KEYS = -(2**30)  # before all keys of any row


@dataclass(frozen=True)
class _Source:
    """Where keys and values of a sequence lie.

    - `at`: the indices of an element of a key, or of its value, by 0 or 1 and its column.
    - `exists`: whether the key may be read.
    - `most`: the most keys of a sequence that the host knows of.
    """

    keys: Any
    values: Any
    at: Callable[[int, Any], list[Any]]
    exists: Any
    most: Any


def keys_of_sequence(args: CacheArguments, sequence: Any) -> tuple[Any, Any]:
    """Return the first key of a sequence, as a row or an entry of the table, and how many."""
    if args.kind == RAGGED:
        offsets = args["kv_indptr"]
        return offsets[sequence], offsets[sequence + 1] - offsets[sequence]
    offsets, lengths = args["page_indptr"], args["length_info"]
    first, pages = offsets[sequence], offsets[sequence + 1] - offsets[sequence]
    whole = (pages - 1) * args["pages"].shape[3]
    if args.slides:
        last, start, sink = (lengths[x, sequence] for x in range(3))
        count = whole + last - start + sink
    else:
        count = whole + lengths[sequence]
    return first, tirx.max(count, 0) * tirx.min(pages, 1)  # without a branch


def window_of_sequence(args: CacheArguments, sequence: Any, keys: Any) -> tuple[Any, Any, Any]:
    """Return the first key of the first row, the sink, and how far behind it other keys lie.

    TVM's mask of a window hides no later key from a row, and without `causal` none at all.
    """
    assert args.window is not None
    start, sink = (args["length_info"][x, sequence] for x in (1, 2))
    hides = tirx.And(args["causal"] > 0, args.window > 0)
    first = tirx.Select(hides, keys + 1 - args.window, ALL_KEYS)
    return first, sink, start - sink


def prefill_attention(args: CacheArguments, table: TileTable, keys: int) -> Attention:
    """Describe attention of tiles of query rows; `keys` are those of a step."""
    head, tile, row, key = (ir.Var(x, INT32) for x in ("h", "t", "i", "j"))
    at = table.of_tile(tile)
    heads = tirx.IntImm(INT32, int(args["q"].shape[1]))
    window = (at["sink"], at["gap"]) if args.slides else None
    head_of_keys = tirx.floordiv(head, args.group)
    source = _source(args, at["first_key"], head_of_keys, key, at["keys"], window)
    limits = KeyLimits(tirx.min(at["keys"], at["diagonal"] + row), at["full"], at["end"])
    if args.slides:
        lowest = at["lowest"]
        begin, all_from = tirx.max(lowest, 0), lowest + (at["rows"] - 1)
        limits = replace(limits, from_row=lowest + row, begin=begin, all_from=all_from)
    return _attention(
        args,
        leads=(LoopAxis(head, heads), LoopAxis(tile, table.count)),
        row=LoopAxis(row, tirx.IntImm(INT32, table.rows)),
        key=LoopAxis(key, tirx.floordiv(source.most + (keys - 1), keys) * keys),
        place=(at["query"] + row, head),
        source=source,
        limits=limits,
        row_count=at["rows"],
    )


def decode_attention(args: CacheArguments, parts: Any, step: int) -> Attention:
    """Describe attention of one query of each sequence: rows are the heads that share keys.

    - `parts`: of the keys of a sequence: each takes as many steps, as far as there are any.
    - `step`: keys of one.
    """
    sequence, kv_head, row, key = (ir.Var(x, INT32) for x in ("b", "h", "i", "j"))
    first_key, keys = keys_of_sequence(args, sequence)
    window = None
    if args.slides:
        start, sink = (args["length_info"][x, sequence] for x in (1, 2))
        window = sink, start - sink
    source = _source(args, first_key, kv_head, key, keys, window)
    kv_heads = tirx.IntImm(INT32, int(args["pages"].shape[2]))

    def steps(part: Any) -> tuple[Any, Any]:
        every = tirx.floordiv(keys + (step - 1), step)
        most = tirx.floordiv(every + (parts - 1), parts)
        first = tirx.min(part * most, every)
        return first, tirx.min(most, every - first)

    return _attention(
        args,
        leads=(LoopAxis(sequence, args["q"].shape[0]), LoopAxis(kv_head, kv_heads)),
        row=LoopAxis(row, tirx.IntImm(INT32, args.group)),
        key=LoopAxis(key, tirx.floordiv(source.most + (step - 1), step) * step),
        place=(sequence, kv_head * args.group + row),
        source=source,
        limits=KeyLimits(keys, keys, keys, steps),
        row_count=None,
    )


def _source(
    args: CacheArguments, first: Any, kv_head: Any, key: Any, count: Any, window: Any
) -> _Source:
    """Say where keys lie; `window` are the sink, and how far behind it the other keys lie."""
    if args.kind == RAGGED:
        k, row = args["k"], first + key
        most = k.shape[0]
        return _Source(k, args["v"], lambda _, column: [row, kv_head, column], row < most, most)
    pages, values = args["pages"], args["page_values"]
    size = int(pages.shape[3])
    position = key
    if window is not None:
        sink, gap = window
        position = tirx.Select(key < sink, key, key + gap)
    # rows of a step behind the last key are not read, but their addresses are computed
    page = values[tirx.min(first + tirx.floordiv(position, size), values.shape[0] - 1)]

    def at(number: int, column: Any) -> list[Any]:
        return [page, number, kv_head, tirx.floormod(position, size), column]

    return _Source(pages, pages, at, key < count, values.shape[0] * size)


def _attention(
    args: CacheArguments,
    *,
    leads: tuple[LoopAxis, ...],
    row: LoopAxis,
    key: LoopAxis,
    place: tuple[Any, Any],
    source: _Source,
    limits: KeyLimits,
    row_count: Any,
) -> Attention:
    q, output = args["q"], args["output"]
    depth, column = ir.Var("k", INT32), ir.Var("c", INT32)
    states = States.make()
    scale = args["sm_scale"] * constant(math.log2(math.e))
    conditions = {source.keys: source.exists, source.values: source.exists}
    if args.kind != DECODE:
        conditions[q] = place[0] < q.shape[0]
    return Attention(
        leads=leads,
        row=row,
        key=key,
        column=LoopAxis(column, tirx.IntImm(INT32, int(output.shape[2]))),
        depth=LoopAxis(depth, tirx.IntImm(INT32, int(q.shape[2]))),
        query=tirx.BufferLoad(q, [*place, depth]),
        keys=tirx.BufferLoad(source.keys, source.at(0, depth)),
        values=tirx.BufferLoad(source.values, source.at(1, column)),
        states=states,
        score=states.product,
        scale=scale,
        base_two=True,
        sink=constant(NO_KEY) / scale,
        probabilities=ir.dtype_of(source.values),
        output=StoredResult(output, (*place, column), states.accumulator / states.row_sum),
        log_sum=StoredResult(
            args["lse"], place, states.row_max * scale + tirx.log2(states.row_sum)
        ),
        conditions=conditions,
        row_count=row_count,
        limits=limits,
    )
