"""`paged_attention`: a kernel of TVM's paged KV cache as a Hopper kernel.

    def batch_decode_paged_kv(Q, pages, ..., rotary_mode, ..., sm_scale): TVM's kernel
  ->
    def batch_decode_paged_kv(Q, pages, ..., rotary_mode, ..., sm_scale):
        if rotary_mode == 0 and 0 < sm_scale:
            if 132 < sequences * kv_heads: the running form of its attention, scheduled
            else: the same with parts of the keys, which a second kernel merges
        else: batch_decode_paged_kv_of_tvm(Q, pages, ..., sm_scale)

Nothing waits for the device: how many tiles and parts there are follows from the tensors' shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts import registers, wgmma
from tvm_hopper.requests.keys import BLOCKS_PER_SM, BY_DEVICE, PAIRS, REGISTERS, ROW_TABLE
from tvm_hopper.requests.targets import chip_of_target
from tvm_hopper.schedule.arguments import check_type
from tvm_hopper.schedule.products.config import ARCH
from tvm_hopper.schedule.tile_order import raster

from . import tile_table
from .apply import schedule_merge, schedule_tile
from .cache_arguments import DECODE, RAGGED, CacheArguments
from .cache_kernels import (
    decode_attention,
    keys_of_sequence,
    prefill_attention,
    window_of_sequence,
)
from .choose import AttentionShape, choose_attention
from .config import KEY_STEP, AttentionConfig
from .description import Attention
from .online import ONLINE
from .running_form import AttentionTile, RunningForm
from .tile_table import TileTable

ROWS = wgmma.INSTRUCTION_M
DECODE_KEYS = 64  # of a step: short steps let few keys fill the ring
# Slots of a ring, and thread blocks that share an SM: the first that shared memory holds.
DECODE_SLOTS = (4, 2), (3, 2), (4, 1), (3, 1), (2, 1)
SHARED_SM_REGISTERS = (56, 200)  # of a producer and of a consumer, twice 128 together
MOST_HELD = SHARED_SM_REGISTERS[1] - registers.BESIDE_CHAINED
MOST_SPLITS = 16
WAVES, SHORT_ROWS = 8, 1024  # of tiles at least, and of sequences at most, for persistent blocks
BOX_ROWS = 8  # rows of a page that a box has at least: a swizzle begins again behind them
BOX_COLUMNS = 64  # of which each row begins where a load may
TABLE_THREADS = 128
# For a producer whose threads copy rows of pages, next to two consumers. A producer of 40 registers
# spills (ptxas 13.0).
COPYING_REGISTERS = (56, 224)


def paged_attention(
    func: tirx.PrimFunc, fallback: str, config: AttentionConfig | None = None
) -> tirx.PrimFunc:
    """Return a Hopper kernel in place of one of TVM's paged KV cache.

    Parameters
    ----------
    func : PrimFunc
        `batch_prefill_ragged_kv`, `batch_prefill_paged_kv` or `batch_decode_paged_kv` as TVM makes
        it, of 16-bit tensors; those of pages also with a sliding window.
    fallback : str
        Name of a function of the same module that takes the same arguments, TVM's own. It is
        called where keys are rotated in the kernel (`rotary_mode`), or the scale is not positive.
    config : AttentionConfig, optional
        Tile, stages and so on; what is left out is chosen.

    Returns
    -------
    func : PrimFunc
        With the same parameters, scheduled.

    Raises
    ------
    ScheduleError
        The function is no such kernel, or has a form that is not supported.

    Notes
    -----
    A row that sees no key has the result 0 and the log-sum-exp -5e4. TVM's kernel gives masked keys
    of such a row a weight where its sequence has any.
    """
    check_type("paged_attention", "fallback", fallback, str, "a function's name")
    check_type("paged_attention", "config", config, AttentionConfig, "an hs.AttentionConfig")
    args = CacheArguments.of(func)
    if args is None:
        need = "a function with the parameters of a kernel of TVM's paged cache"
        raise cannot_schedule("paged_attention", f"{type(func).__name__}", need)
    args.check()
    make = _decode if args.kind == DECODE else _prefill
    served = tirx.And(tirx.EQ(args["rotary_mode"], 0), args["sm_scale"] > 0)
    call = tirx.Evaluate(tirx.call_cpacked(fallback, *args.params))
    branch = ir.IfThenElse(served, make(args, config or AttentionConfig()), call)
    body = ir.SBlockRealize([], True, ir.SBlock([], [], [], "root", branch))
    made = tirx.PrimFunc(args.params, body, attrs=func.attrs)
    return made.with_attr("tirx.is_scheduled", True).with_attr(ONLINE, "cache")


def _shape(args: CacheArguments, rows: int | None) -> AttentionShape:
    depth, columns = int(args["q"].shape[2]), int(args["output"].shape[2])
    return AttentionShape(
        rows=rows,
        keys=None,
        depth=-(-depth // KEY_STEP) * KEY_STEP,
        columns=columns,
        dtype=ir.dtype_of(args["q"]),
        is_masked=True,
    )


def _prefill(args: CacheArguments, given: AttentionConfig) -> ir.Stmt:
    """Return the kernels of a prefill: persistent ones for many short sequences, and others.

    On an H200 persistent blocks took 0.86 of the time for 16 sequences of 512, 1.14 for one of 2048
    and 1.25 for 4 x 512 behind 8192, whose tiles are so few that some blocks have a pair more.
    """
    if given.persistent is not None:
        return _prefill_tiles(args, given)
    total, sequences = args["q"].shape[0], ir.simplify(args["q_indptr"].shape[0] - 1)
    tiles = tirx.floordiv(total * int(args["q"].shape[1]), 2 * ROWS)
    are_many = tiles > WAVES * chip_of_target().num_sms
    are_short = total <= sequences * SHORT_ROWS
    every = (_prefill_tiles(args, replace(given, persistent=x)) for x in (BY_DEVICE, 0))
    return ir.IfThenElse(tirx.And(are_many, are_short), *every)


def _prefill_tiles(args: CacheArguments, given: AttentionConfig) -> ir.Stmt:
    """Return the kernels of a prefill: one that writes the table of tiles, and attention."""
    if not _has_boxes(args) and given.consumers in (None, 2):
        given = replace(given, consumers=2, registers=given.registers or COPYING_REGISTERS)
    config = choose_attention(_shape(args, None), given)
    rows, keys = _tile(config)
    queries = args["q"]
    table = TileTable.of(args["q_indptr"], queries.shape[0], rows, args.slides)
    attention = prefill_attention(args, table, keys)
    causal = args["causal"] > 0
    if args.slides:  # its mask is another one
        causal = tirx.And(causal, args.window == 0)
    tables = table.build(
        lambda x: keys_of_sequence(args, x),
        causal,
        (lambda x, keys: window_of_sequence(args, x, keys)) if args.slides else None,
    )
    sch = _form(args, attention, config, 1, tables, [table.buffer])
    blocks, threads = sch.split(sch.fuse(*sch.get_loops(tile_table.NAME)), [None, TABLE_THREADS])
    sch.bind(blocks, "blockIdx.x")
    sch.bind(threads, "threadIdx.x")
    heads, tiles, single, parts = sch.get_loops("tile")
    sch.bind(heads, "blockIdx.y")
    tiles = sch.fuse(tiles, single)
    sch.bind(tiles, "blockIdx.x")
    schedule_tile(sch, parts, config, "tma" if _has_boxes(args) else "cp_async")
    if config.persistent:
        raster(sch, tiles, persistent=config.persistent, curve=PAIRS)
    for name in ("out", "lse"):  # tiles are of different rows, as offsets do not fall
        sch.annotate(sch.get_sblock(name), ROW_TABLE, tile_table.NAME)
    return _scope(sch, "attention_of_many" if config.persistent else "attention")


def _has_boxes(args: CacheArguments) -> bool:
    """Tell whether keys are boxes: rows in a row, or pages of which a box has no few rows.

    Keys behind a window's start lie anywhere in their pages.
    """
    if args.kind == RAGGED:
        return True
    page, columns = (int(x) for x in args["pages"].shape[3:])
    return page % BOX_ROWS == 0 and columns % BOX_COLUMNS == 0 and not args.slides


def _decode(args: CacheArguments, given: AttentionConfig) -> ir.Stmt:
    """Return the kernels of decoding: with one part of the keys, and with several."""
    where = "attention of the cache, paged decode"
    if args.group > ROWS:
        raise cannot_schedule(where, f"{args.group} heads that share keys", f"at most {ROWS}")
    if given.persistent:
        need = "0: a thread block has one sequence"
        raise cannot_schedule(where, f"persistent={given.persistent}", need)
    config, together = _decode_config(_shape(args, args.group), given)
    if given.splits is not None:
        return _decode_in_parts(args, config, together, given.splits)
    kv_heads, most = int(args["pages"].shape[2]), chip_of_target().num_sms * together
    whole = _decode_in_parts(args, config, together, 1)
    if kv_heads > most // 2:
        return whole
    # half of the blocks have enough bytes in flight; a merge would take longer than it saves
    blocks = args["q"].shape[0] * kv_heads
    parts = tirx.min(tirx.floordiv(most, tirx.max(blocks, 1)), MOST_SPLITS)
    several = _decode_in_parts(args, config, together, tirx.max(parts, 2))
    return ir.IfThenElse(blocks > most // 2, whole, several)


def _decode_config(shape: AttentionShape, given: AttentionConfig) -> tuple[AttentionConfig, int]:
    """Return a configuration, and how many thread blocks share an SM.

    Two, where both have three slots: one loads while the other one begins, or ends.
    """
    tile = given.tile or (ROWS, DECODE_KEYS)
    for stages, together in DECODE_SLOTS:
        taken = shape.shared_bytes(tile, given.stages or stages)
        if taken <= ARCH.smem_per_sm // together - ARCH.smem_reserved_per_block:
            break
    alone = given.registers is not None or sum(shape.held(tile[1])) > MOST_HELD
    given = replace(given, tile=tile, stages=given.stages or stages)
    return choose_attention(shape, given), 1 if alone else together


def _decode_in_parts(
    args: CacheArguments, config: AttentionConfig, together: int, splits: Any
) -> ir.Stmt:
    """Return the kernels of decoding with parts of the keys, as many as the host counts."""
    sch = _form(args, decode_attention(args, splits, _tile(config)[1]), config, splits)
    *split, sequences, kv_heads, _, parts = sch.get_loops("tile")
    for loop, axis in zip((sequences, kv_heads, *split), "xyz", strict=False):
        sch.bind(loop, f"blockIdx.{axis}")
    schedule_tile(sch, parts, config, "cp_async")
    if together > 1:
        sch.annotate(sequences, BLOCKS_PER_SM, together)
        sch.annotate(sch.get_loops("step")[-1], REGISTERS, list(SHARED_SM_REGISTERS))
    if split:
        schedule_merge(sch)
    return _scope(sch, "attention_in_parts" if split else "attention")


def _scope(sch: s_tir.Schedule, name: str) -> ir.Stmt:
    """Return the body of a schedule's function as a block scope of its own."""
    return ir.SBlockRealize([], True, ir.with_block(sch.mod["main"].body.block, name_hint=name))


def _tile(config: AttentionConfig) -> tuple[int, int]:
    assert config.tile is not None
    return config.tile


def _form(
    args: CacheArguments,
    attention: Attention,
    config: AttentionConfig,
    splits: Any,
    tables: Any = None,
    own: Sequence[Any] = (),
) -> s_tir.Schedule:
    """Return a schedule of the running form, behind loops that write tables of its own."""
    assert config.consumers is not None
    rows, keys = _tile(config)
    tile = AttentionTile(rows, keys, config.consumers, splits)
    body, others = RunningForm(attention, tile, attention.probabilities).build()
    block = ir.SBlock([], [], [], "root", ir.seq(tables, body), alloc_buffers=[*own, *others])
    func = tirx.PrimFunc(args.params, ir.SBlockRealize([], True, block))
    sch = s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    sch.work_on("main")
    return sch
