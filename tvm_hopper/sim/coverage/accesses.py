"""Accesses of global memory, before their indices are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper.sim.coverage.nodes import Node, Variable

LOAD, STORE, ATOMIC = "load", "store", "atomic"


@dataclass(frozen=True, eq=False)
class PathStep:
    """One step of the path to an access: a condition, or a loop whose variable counts from 0.

    `kind` is "if", "for" or "while". `node` is the extent of a `for`, and the condition under which
    an iteration of a `while` begins.
    """

    kind: str
    node: Node
    variable: Variable | None = None


@dataclass(frozen=True)
class GlobalAddress:
    """A place in memory: `offset` bytes from the start of parameter `param`.

    `param` is empty for memory that is not global; None for an unknown target.
    """

    param: str | None
    offset: Node
    buffer: str = ""


@dataclass(frozen=True)
class GlobalAccess:
    """A statement's access of a tensor in global memory.

    - `statement` (object): the TIR statement.
    - `kind`: `LOAD`, `STORE` or `ATOMIC` (atomic, or with an order of its own: does not conflict
      with its like).
    - `path`: loops and conditions around it, outermost first.
    - `param`: parameter of the device function: a pointer, or a tensor map.
    - `offsets`: the byte from the pointer on; or the box's coordinates, innermost first.
    - `width`: bytes from there on, of one thread.
    - `align`: bytes to which the address must be aligned; of a tensor map, its innermost
      coordinate.
    - `index_bits`: bits of the type of the index, which must hold it; 0 if it has none.
    - `size`: bytes of one element, for messages.
    - `whole`: the width must be a multiple of `align` too: a bulk copy's.
    """

    statement: Any
    kind: str
    path: tuple[PathStep, ...]
    param: str
    offsets: tuple[Node, ...]
    width: Node
    align: int
    buffer: str
    size: int = 1
    is_map: bool = False
    index_bits: int = 0
    whole: bool = False


@dataclass(frozen=True)
class Undecided:
    """Why a statement is undecided, and whether it may store to a tensor (a parameter).

    `path` leads to it, as to an access.
    """

    statement: Any
    reason: str
    param: str | None
    stores: bool = True
    path: tuple[PathStep, ...] = ()
