"""Reads and writes of statements, also through pointers passed to calls.

    C[i] = A[i]                                 reads A, writes C
    f(tvm_access_ptr(A, ..., mask="r"))         reads A: the pointer says so
    ldmatrix(..., &fragment, ..., &A[i], ...)   writes fragment, reads A: the call is in the table
    g(&A[0])                                    nothing knows: reads A and writes it

Effects of calls are data. A call that is not in the table may read and write through a pointer
without a mask, and counts as complete when it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi

from tvm_hopper import ir
from tvm_hopper.facts import op_names
from tvm_hopper.requests.keys import BULK_LOAD, CP_ASYNC, DMA_COPY, TMA_LOAD, WITH_HINT

READ, WRITE = 1, 2  # the bits of an access pointer's mask
BOTH = READ | WRITE


@dataclass(frozen=True)
class PointerEffect:
    """A pointer among the arguments of a call, and what the call does after it.

    `offset` is the position of the argument that counts elements from there. Where it says nothing
    of the lane (`adds_lane`), the call goes to the lane's own part of a warp's buffer by itself.
    Behind a pointer `by_rows` each lane names a row of 16 bytes, and nothing else is touched.
    """

    mode: int
    offset: int | None = None
    adds_lane: bool = False
    by_rows: bool = False


# For each call its pointers, by their positions among the arguments, from the end where negative.
# Functions that are called by name are here by that.
POINTERS: dict[str, dict[int, PointerEffect]] = {
    TMA_LOAD: {1: PointerEffect(WRITE)},
    BULK_LOAD: {1: PointerEffect(WRITE), 2: PointerEffect(READ)},
    CP_ASYNC: {1: PointerEffect(WRITE), 2: PointerEffect(READ)},
    DMA_COPY: {1: PointerEffect(WRITE), 2: PointerEffect(READ)},
    # registers, their number as the instruction says; then the address, seven modifiers, and flags
    op_names.LDMATRIX: {-9: PointerEffect(READ)},
    op_names.STMATRIX: {0: PointerEffect(WRITE)},
    # a register, an address in shared memory, a rank: where a peer has it, whom nothing writes to
    op_names.MAPA: {1: PointerEffect(READ)},
    # barriers, which order themselves: no data
    op_names.MBARRIER_INIT: {0: PointerEffect(0)},
    op_names.MBARRIER_EXPECT: {0: PointerEffect(0)},
    op_names.MBARRIER_WAIT: {0: PointerEffect(0)},
    # trans, number, type, registers, their offset, row in shared memory, its offset
    op_names.LEGACY_LDMATRIX: {3: PointerEffect(WRITE, 4), 5: PointerEffect(READ, 6, by_rows=True)},
    # shape, layouts, types; A, B and the accumulator, each with its offset: registers alone
    op_names.LEGACY_MMA: {
        6: PointerEffect(READ, 7),
        8: PointerEffect(READ, 9),
        10: PointerEffect(BOTH, 11),
    },
    # number of elements, registers, their offset
    "tirx.mma_fill_legacy": {1: PointerEffect(WRITE, 2, adds_lane=True)},
    # rows, columns, destination, registers, their offset, stride of the destination
    "tirx.mma_store_legacy": {2: PointerEffect(WRITE), 3: PointerEffect(READ, 4, adds_lane=True)},
}


@dataclass(frozen=True)
class Effect:
    """A buffer that a statement reads, writes, or both; by a pointer, or element by element."""

    buffer: ir.Var
    mode: int
    by_pointer: bool = False

    @property
    def reads(self) -> bool:
        """Tell whether elements are read."""
        return bool(self.mode & READ)

    @property
    def writes(self) -> bool:
        """Tell whether elements are written."""
        return bool(self.mode & WRITE)


def find_effects(root: Any) -> list[Effect]:
    """Return what is read and written below `root`, in the order of the program's text."""
    effects: list[Effect] = []

    def load(node: ir.TensorLoad) -> None:
        effects.append(Effect(node.source, READ))

    def store(node: ir.BufferStore) -> None:
        effects.append(Effect(node.buffer, WRITE))

    def call(node: ir.Call) -> Any:
        if (target := _target(node)) is not None:
            buffer, mode, inside = target
            effects.append(Effect(buffer, mode, by_pointer=True))
            walk(inside)
            return tvm_ffi.WalkResult.SKIP
        pointers = POINTERS.get(function_of(node))
        if pointers is None:
            return None
        for position, arg in enumerate(node.args):
            known = pointers.get(position, pointers.get(position - len(node.args)))
            target = _target(arg)
            if known is None or target is None:
                walk([arg])
            else:
                buffer, _, inside = target
                effects.append(Effect(buffer, known.mode, by_pointer=True))
                walk(inside)
        return tvm_ffi.WalkResult.SKIP

    def walk(nodes: list[Any]) -> None:
        for node in nodes:
            ir.visit(node, callbacks)

    callbacks: list[Any] = [(ir.TensorLoad, load), (ir.BufferStore, store), (ir.Call, call)]
    walk([root])
    return effects


def writes(root: Any, buffer: ir.Var) -> bool:
    """Tell whether a buffer may be written below `root`."""
    return any(x.writes and x.buffer.same_as(buffer) for x in find_effects(root))


def function_of(call: ir.Call) -> str:
    """Return the name by which a call is found in the table."""
    name = str(getattr(call.op, "name", ""))
    if name != "tirx.call_extern":
        return name
    return str(getattr(call.args[0], "value", name)).partition(WITH_HINT)[0]


def _target(expr: Any) -> tuple[ir.Var, int, list[Any]] | None:
    """Return the buffer of a pointer, its access mask, and the expressions of its address."""
    if not isinstance(expr, ir.Call):
        return None
    name = getattr(expr.op, "name", "")
    if name == op_names.TO_SHARED:
        return _target(expr.args[0])
    if (buffer := ir.pointer_of(expr)) is not None:
        return buffer, BOTH, []
    if name == ir.ACCESS_PTR and (buffer := ir.pointer_of(expr.args[1])) is not None:
        mask = ir.static_int(expr.args[4])
        return buffer, BOTH if mask is None else mask & BOTH, [expr.args[2]]
    if name == "tirx.address_of" and isinstance(expr.args[0], ir.TensorLoad):
        return expr.args[0].source, BOTH, list(expr.args[0].indices)
    return None
