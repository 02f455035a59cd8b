"""Operands that are converted on their way: fewer bytes in memory, 16 bits where they multiply.

    F[j, k] = float16(W[j, k]) * S[j]                     W of 8 bits, or several elements in a word
    C[i, j] += A[i, k] * F[j, k]
  ->
    for k0:
        A_shared = A;  W_shared = W                       by TMA, in the narrow type
        F_local[j, k] = float16(W_shared[j, k]) * S[j]    each thread what its registers hold
        C_local[j, i] += F_local[j, k] * A_shared[i, k]

WGMMA takes its first operand from registers, and no other one. So the rows of a tile are those of
the converted operand: of weights the kernel computes C^T = F A^T.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.facts.programming_model import BULK_ALIGNMENT
from tvm_hopper.facts.wgmma import instruction_k
from tvm_hopper.requests.targets import chip_of_target

from .classes import ClassKernel, product_of
from .config import MatmulConfig
from .dot_shape import VECTOR_BYTES
from .field_values import TRANSPOSED, UNTRANSPOSED
from .model import is_whole, rank_both, with_tile
from .narrow_operands import Decoder, find_decoder
from .recognize import Matmul, MatmulOperand

FIRST = "in a function in front (hs.pointwise)"


def find_converted(sch: s_tir.Schedule, block: Any, problem: Matmul) -> list[MatmulOperand]:
    """Return the operands of a product that blocks before it convert, with their bytes in memory.

    The blocks are those that `fuse_prologue` leaves.
    """
    found = []
    for producer in sch.get_producers(block):
        decoder = find_decoder(sch.get(producer))
        made = [x.source for x in sch.get(producer).writes]
        found += [
            replace(
                operand,
                stored_bytes=decoder.num_bytes + decoder.value_bytes,
                in_one=_in_one(sch, producer, decoder),
                run=_run(sch, producer, decoder),
            )
            for operand in (problem.lhs, problem.rhs)
            if decoder is not None and operand.buffer.same_as(made[0])
        ]
    return found


def _in_one(sch: s_tir.Schedule, maker: Any, decoder: Decoder) -> tuple[int, int]:
    """Return the rows and the neighbours along k that are packed in one element."""
    *_, row, k = sch.get(maker).body.indices
    units = [x.var for x in sch.get(maker).iter_vars if ir.is_const(x.dom.extent, 1)]
    rows, depth = (1 if any(x.same_as(y) for y in units) else decoder.in_one(x) for x in (row, k))
    return rows, depth


def _run(sch: s_tir.Schedule, maker: Any, decoder: Decoder) -> int:
    """Return how many neighbours along k 16 bytes of the packed tensor make; 0: of several rows."""
    *_, row, k = sch.get(maker).body.indices
    is_along = ir.depends_on(decoder.load.indices[-1], [k])
    count = VECTOR_BYTES / decoder.num_bytes
    return int(count) if is_along and decoder.in_one(row) == 1 and count.is_integer() else 0


def for_converted(sch: s_tir.Schedule, block: Any, problem: Matmul) -> Matmul:
    """Note which operand of a product is converted.

    - raises ScheduleError: the operand cannot come through registers.
    """
    found = find_converted(sch, block, problem)
    if not found:
        return problem
    where = f"block {problem.name}"
    if len(found) > 1:
        names = f"{problem.lhs.name} and {problem.rhs.name}, both converted on their way"
        need = "one: WGMMA takes its first operand from registers, the second from shared memory"
        raise cannot_schedule(where, f"operands {names}", need, f"convert one of them {FIRST}")
    (operand,) = found
    _check_memory(sch, block, where, operand)
    if operand.buffer.same_as(problem.lhs.buffer):
        return replace(problem, lhs=operand)
    return replace(problem, rhs=operand)


def by_rows_of_converted(problem: Matmul, config: MatmulConfig) -> MatmulConfig:
    """Let rows of tiles be those of the operand that is converted.

    - raises ScheduleError: something else was requested.
    """
    form = UNTRANSPOSED if problem.lhs.stored_bytes else TRANSPOSED
    if not config.is_orientation_open and config.form != form:
        operand = problem.lhs if problem.lhs.stored_bytes else problem.rhs
        need = f"form={form!r}, or none: rows of a tile are those of {operand.name}"
        asked = f"form={config.form!r} where {operand.name} is converted on its way"
        raise cannot_schedule(f"block {problem.name}", asked, need)
    return replace(config, form=form)


def check_none_converted(sch: s_tir.Schedule, block: Any, problem: Matmul) -> None:
    """Refuse converted operands of several products, or next to reductions of the output's rows."""
    for operand in find_converted(sch, block, problem):
        raise cannot_schedule(
            f"block {problem.name}",
            f"{operand.name}, converted on its way, of several products or next to reductions",
            "operands in memory in the type that is multiplied",
            f"give the product a kernel of its own, or convert {operand.name} {FIRST}",
        )


def _check_memory(sch: s_tir.Schedule, block: Any, where: str, operand: MatmulOperand) -> None:
    """Refuse a packed tensor of which TMA cannot load tiles."""
    makers = [sch.get(x) for x in sch.get_producers(block)]
    (maker,) = (x for x in makers if x.writes[0].source.same_as(operand.buffer))
    decoder = find_decoder(maker)
    assert decoder is not None
    packed = decoder.packed
    row, dtype = ir.static_int(packed.shape[-1]), ir.dtype_of(packed)
    if len(packed.ty.strides) or row is None or row * dtype_bytes(dtype) % BULK_ALIGNMENT:
        found = f"rows of {packed.shape[-1] if row is None else row} {dtype} elements"
        need = f"a tensor without strides whose rows are multiples of {BULK_ALIGNMENT} bytes"
        raise cannot_schedule(f"{where}, tensor {packed.name}", found, need, f"convert it {FIRST}")


def choose_converted(
    problem: Matmul, kernel: ClassKernel, config: MatmulConfig, outputs: tuple[str, ...]
) -> MatmulConfig:
    """Choose the tile of a product with a converted operand."""
    found = [x for x in (problem.lhs, problem.rhs) if x.stored_bytes]
    if not found:
        return config
    rows, depth = found[0].in_one
    if config.tile is None:
        wanted = product_of(problem, kernel, outputs)
        best = next(iter(rank_both(wanted, config, chip_of_target(), 1)), None)
        if best is None:
            return config
        if not is_whole(wanted, best):
            # NVRTC 13.0 moves what a condition guards over the wait for a group that is left in
            # flight, and ptxas serialises (C7513)
            best = replace(best, pending=0)
        tile_m, tile_n, deep = best.tile
        if deep % depth:  # elements of 3 bits, ten in a word
            step = math.lcm(depth, instruction_k(found[0].dtype))
            best = replace(best, tile=(tile_m, tile_n, max(1, deep // step) * step))
        config = with_tile(config, best)
        config = replace(config, stages=config.stages or best.stages)
    _check_packed(problem, found[0], config, (rows, depth))
    return config


def _check_packed(
    problem: Matmul, operand: MatmulOperand, config: MatmulConfig, in_one: tuple[int, int]
) -> None:
    """Refuse tiles that begin within an element of the packed tensor."""
    tile_m, _, tile_k = config.tile or (1, 1, 1)
    for name, size, packed in (("rows", tile_m, in_one[0]), ("depth", tile_k, in_one[1])):
        if isinstance(size, int) and size % packed:
            raise cannot_schedule(
                f"block {problem.name}, tensor {operand.name}",
                f"a tile of {size} {name}, of which {packed} are packed in one element",
                f"a multiple of {packed}",
                f"give another tile, or convert it {FIRST}",
            )
