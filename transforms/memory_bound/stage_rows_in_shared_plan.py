"""Plan which rows of a persistent kernel's row loop are staged in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi

from tvm_hopper import ir
from tvm_hopper.errors import cannot_lower
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests.keys import LOAD_HINT, SKEW_TURNS, STAGE_ROWS

PART_AXIS = "threadIdx.z"  # counts the parts of a row that a cluster shares
_BULK_BYTES = 16  # of which addresses and sizes are multiples


@dataclass(frozen=True)
class StagedTensor:
    """A tensor of which a loop loads a row an iteration."""

    tensor: ir.Var
    first: tuple[Any, ...]  # index of the first element of a thread block's part of a row
    columns: int  # of that part
    loads: tuple[ir.BufferStore, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the part of a row."""
        return self.columns * dtype_bytes(ir.dtype_of(self.tensor))


@dataclass(frozen=True)
class StagedLoop:
    """A loop over rows, when its rows exist, and by how many iterations they are requested ahead.

    `hint` is their L2 eviction policy, or empty.
    """

    loop: ir.For
    exists: Any
    ahead: int
    tensors: tuple[StagedTensor, ...]
    hint: str = ""

    @property
    def rooms(self) -> int:
        """Rows that wait, the one that is computed with, and the one before; skewed, two."""
        return self.ahead + 2 + (SKEW_TURNS in self.loop.annotations)

    @property
    def num_bytes(self) -> int:
        """Bytes of an iteration."""
        return sum(x.num_bytes for x in self.tensors)


def plan_stages(kernel: ir.For) -> tuple[StagedLoop, ...]:
    """Find the loops with a request and the rows that they load; skip loops of one iteration."""
    loops = [x for x in requested(kernel) if not ir.is_const(x.extent, 1)]
    return tuple(_plan(kernel, loop) for loop in loops)


def requested(kernel: ir.For, key: str = STAGE_ROWS) -> list[ir.For]:
    """Return the loops with a request."""
    return ir.find_all(kernel, ir.For, lambda x: key in x.annotations)


def _plan(kernel: ir.For, loop: ir.For) -> StagedLoop:
    axes = ir.thread_axes(kernel)
    part = axes.get(PART_AXIS)
    inside = [x.loop_var for x in ir.find_all(loop.body, ir.For)]
    threads = [x.loop_var for tag, x in axes.items() if tag in ("threadIdx.x", "threadIdx.y")]
    zero = dict.fromkeys([*inside, *threads], 0)
    found: dict[ir.Var, StagedTensor] = {}
    conditions, hints = [], []
    for realize in ir.find_all(loop.body, ir.SBlockRealize):
        load = loaded_element(realize.block.body)
        if load is None or not ir.depends_on(list(load.indices), [loop.loop_var]):
            continue
        first = [ir.simplify(ir.substitute(x, zero)) for x in load.indices]
        if not (columns := part_columns(load.source, first[-1], part)):
            raise cannot_lower(
                f"tensor {load.source.name}, {STAGE_ROWS}",
                f"rows of {load.source.shape[-1]} elements for "
                f"{1 if part is None else part.extent} thread blocks",
                f"contiguous parts, each of a multiple of {_BULK_BYTES} bytes",
                "leave the request out",
            )
        known = found.get(load.source)
        loads = (*(known.loads if known is not None else ()), realize.block.body)
        found[load.source] = StagedTensor(load.source, tuple(first), columns, loads)
        conditions.append(ir.simplify(ir.substitute(realize.predicate, zero)))
        hints.append(str(realize.block.annotations.get(LOAD_HINT, "")))
    alike = all(tvm_ffi.structural_equal(x, conditions[0]) for x in conditions)
    rows = axes.get("threadIdx.y")
    if not found or not alike or (rows is not None and not ir.is_const(rows.extent, 1)):
        raise cannot_lower(
            f"loop {loop.loop_var.name}, {STAGE_ROWS}",
            "no rows that the loop loads one by one",
            "loads of whole rows into registers, under one condition",
            "leave the request out",
        )
    ahead = int(loop.annotations[STAGE_ROWS])
    return StagedLoop(loop, conditions[0], ahead, tuple(found.values()), hints[0])


def part_columns(tensor: ir.Var, first: Any, part: ir.For | None) -> int:
    """Return the columns of a thread block's part of a row, 0 if no bulk copy brings them."""
    columns, count = ir.static_int(tensor.shape[-1]), 1 if part is None else int(part.extent)
    if columns is None or columns % count or tensor.ty.strides:
        return 0
    columns //= count
    begin = 0 if part is None else part.loop_var * columns
    is_whole = columns * dtype_bytes(ir.dtype_of(tensor)) % _BULK_BYTES == 0
    return columns if is_whole and ir.is_zero(ir.simplify(first - begin)) else 0


def loaded_element(stmt: Any) -> Any:
    """Return the element of memory that a statement copies into registers, if it does."""
    if not isinstance(stmt, ir.BufferStore) or str(stmt.buffer.scope()) != "local":
        return None
    value = stmt.value
    outside = isinstance(value, ir.TensorLoad) and str(value.source.scope()) in ("", "global")
    return value if outside else None
