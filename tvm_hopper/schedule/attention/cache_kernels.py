"""Attention of TVM's paged cache: its functions' arguments as the tensors of an attention.

    batch_prefill_ragged_kv(q, q_indptr, k, v, kv_indptr, ..., output, lse, causal, ..., sm_scale)
  ->
    tile t: rows tile_start[t].. of sequence s = tile_sequence[t], for each head h
    S[i, j] = q[q_indptr[s] + row, h, :] k[kv_indptr[s] + j, h // 4, :]
    O, lse  = softmax over j < keys, with one more score of -5e4, log-sum-exp in base 2

TVM's running maximum begins at -5e4, its denominator at 1: that is one more key without a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .description import Attention, LoopAxis, StoredResult, States
from .scores import FLOAT32, MINUS_INFINITY, constant
from .tile_table import TileTable

INT32 = "int32"
NO_KEY = -5e4  # log-sum-exp of a row without a key
RAGGED = "batch_prefill_ragged_kv"


@dataclass(frozen=True)
class RaggedArguments:
    """Parameters of `batch_prefill_ragged_kv`, by TVM's order."""

    q: Any
    q_indptr: Any
    k: Any
    v: Any
    kv_indptr: Any
    q_rope_position: Any
    k_rope_pos_offset: Any
    output: Any
    lse: Any
    causal: Any
    rotary_mode: Any
    rope_scale: Any
    rope_theta: Any
    sm_scale: Any


def ragged_attention(args: RaggedArguments, table: TileTable, keys: int) -> Attention:
    """Describe attention of ragged queries, keys and values.

    Parameters
    ----------
    args : RaggedArguments
        q (rows, heads, d), k (keys, kv_heads, d), v (keys, kv_heads, columns) and output in 16
        bits, lse (rows, heads) float32, offsets (sequences + 1) int32.
    table : TileTable
        Of the rows' tiles.
    keys : int
        Keys of a step.
    """
    head, tile, row, key, column, depth = (
        ir.Var(x, INT32) for x in ("h", "t", "i", "j", "c", "k")
    )
    heads, kv_heads = (ir.static_int(x.shape[1]) for x in (args.q, args.k))
    kv_head = tirx.floordiv(head, heads // kv_heads)
    at = table.of_tile(tile)
    query, key_row = at["query"] + row, at["first_key"] + key
    states = States.make()
    mask = tirx.And(key < at["keys"], key <= at["diagonal"] + row)
    no_key, scale = constant(NO_KEY), args.sm_scale * constant(math.log2(math.e))
    total = args.k.shape[0]
    return Attention(
        leads=(LoopAxis(head, tirx.IntImm(INT32, heads)), LoopAxis(tile, table.count)),
        row=LoopAxis(row, tirx.IntImm(INT32, table.rows)),
        key=LoopAxis(key, tirx.floordiv(total + (keys - 1), keys) * keys),
        column=LoopAxis(column, args.v.shape[2]),
        depth=LoopAxis(depth, args.q.shape[2]),
        query=args.q[query, head, depth],
        keys=args.k[key_row, kv_head, depth],
        values=args.v[key_row, kv_head, column],
        states=states,
        score=tirx.Select(mask, states.product, constant(MINUS_INFINITY)),
        scale=scale,
        base_two=True,
        sink=no_key / scale,
        probabilities=ir.dtype_of(args.v),
        output=StoredResult(
            args.output, (query, head, column), states.accumulator / states.row_sum
        ),
        log_sum=StoredResult(
            args.lse, (query, head), states.row_max * scale + tirx.log2(states.row_sum)
        ),
        conditions={
            args.q: query < args.q.shape[0],
            args.k: key_row < total,
            args.v: key_row < total,
        },
        row_count=at["rows"],
    )
