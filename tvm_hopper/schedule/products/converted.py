"""Operands that are converted on their way: a narrower type in memory, 16 bits where they multiply.

    F[j, k] = float16(W[j, k]) * S[j]                     W of 8 bits
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

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import s_tir

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import HALF_DTYPES, dtype_bytes
from tvm_hopper.facts.programming_model import BULK_ALIGNMENT

from .config import MatmulConfig
from .field_values import TRANSPOSED, UNTRANSPOSED
from .recognize import Matmul, MatmulOperand


def find_narrow(node: Any) -> Any:
    """Return the load of the narrower tensor that a block converts; None if it converts none.

    Its element is that of the operand; what else the block reads has one element a row.
    """
    store = node.body
    if node.init is not None or not isinstance(store, ir.BufferStore):
        return None
    if ir.dtype_of(store.buffer) not in HALF_DTYPES or len(store.indices) < 2:
        return None
    own = [x.var for x in node.iter_vars]
    if not all(any(x.same_as(v) for v in own) for x in store.indices):
        return None
    inner = store.indices[-1]
    loads = ir.find_all(store.value, ir.TensorLoad)
    moving = [x for x in loads if ir.depends_on(list(x.indices), [inner])]
    sources = ir.once([x.source for x in moving])
    if len(sources) != 1 or ir.find_all([list(x.indices) for x in loads], ir.TensorLoad):
        return None
    wide = dtype_bytes(ir.dtype_of(store.buffer))
    dtype = ir.dtype_of(sources[0])
    whole = [list(map(str, x.indices)) == list(map(str, store.indices)) for x in moving]
    return moving[0] if all(whole) and dtype_bytes(dtype) < wide else None


def find_converted(sch: s_tir.Schedule, block: Any, problem: Matmul) -> list[MatmulOperand]:
    """Return the operands of a product that blocks before it convert."""
    made = [sch.get(x) for x in sch.get_producers(block)]
    made = [x for x in made if find_narrow(x) is not None]
    return [
        operand
        for operand in (problem.lhs, problem.rhs)
        if any(x.writes[0].source.same_as(operand.buffer) for x in made)
    ]


def for_converted(
    sch: s_tir.Schedule, block: Any, problem: Matmul, config: MatmulConfig
) -> MatmulConfig:
    """Orient a product so that rows of a tile are those of its converted operand, if it has one.

    Raises
    ------
    ScheduleError
        The operand cannot come through registers, or something else was requested.
    """
    found = find_converted(sch, block, problem)
    if not found:
        return config
    where = f"block {problem.name}"
    if len(found) > 1:
        names = f"{problem.lhs.name} and {problem.rhs.name}"
        need = "one: WGMMA takes its first operand from registers, the second from shared memory"
        raise cannot_schedule(where, f"operands {names}, both converted on their way", need)
    (operand,) = found
    form = UNTRANSPOSED if operand is problem.lhs else TRANSPOSED
    if not config.is_orientation_open and config.form != form:
        need = f"form={form!r}: the rows of its tiles are those of {operand.name}"
        raise cannot_schedule(where, f"form={config.form!r}, {operand.name} converted", need)
    if operand.major != "k":
        found_ = f"{operand.name} whose neighbours in memory are not neighbours along k"
        need = "rows along k: a register holds neighbours along k"
        raise cannot_schedule(where, found_, need, f"store {operand.name} transposed")
    return replace(config, form=form)
