"""What a copy mechanism is: how it plans copies and emits them, and what it needs of their tiles.

A mechanism has a plan module, a module that emits, which ends with its `CopyMechanism`, rows in
`facts.async_ops`, and a place in table.py. Whoever makes copies asks the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm_hopper import ir
from tvm_hopper.facts.arch import Processor
from tvm_hopper.transforms.common.explain_notes import Note
from tvm_hopper.transforms.common.shared_layout import Demand
from tvm_hopper.transforms.common.transfer import Transfer


@dataclass(frozen=True)
class PlannedCopy:
    """One copy, as a mechanism makes it."""

    copy: Transfer

    @property
    def encoded(self) -> list[Any]:
        """The extents that the host encodes for it at each call."""
        return []


@dataclass
class Host:
    """What the host does before a launch: `no_input` are extents that may be 0."""

    names: ir.Names
    no_input: list[ir.Var]
    stmts: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class CopyMechanism:
    """One mechanism that copies tiles, what it needs and what it can do."""

    name: str  # by which a schedule requests it, and `facts.async_ops` has it
    # Takes a kernel, its copies by this mechanism and the processor; raises reasons to refuse.
    plan: Callable[[Any, tuple[Transfer, ...], Any], tuple[Any, ...]]
    emit: Callable[[Sequence[Any], Host], dict[Any, Any]]  # what takes the place of each nest
    demand: Callable[[Transfer], Demand]  # what a copy needs of its tile's layout
    needs_panels: bool = False  # tiles are laid out in panels, whoever reads them
    fills_by_bounds: bool = False  # the hardware fills what lies out of bounds, with zeros
    row_units: tuple[int, ...] = ()  # bytes that rows are multiples of, if it can fill panels
    title: str = ""  # in an error about rows
    notes: Callable[[Sequence[Any]], list[Note]] | None = None  # what `explain` says
    # By the name of a call of a load: takes its operands, the `barrier` on which it completes and
    # a `policy` for L2.
    instructions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def loads_on(self, processor: Processor) -> bool:
        """Tell whether a processor has it for loads."""
        return self.name in processor.mechanisms(is_load=True)

    @property
    def units(self) -> str:
        """The units of its rows, as a sentence names them."""
        *others, last = map(str, self.row_units)
        return f"{', '.join(others)} or {last}" if others else last


def each(block: Callable[[Any], Any]) -> Callable[[Sequence[Any], Host], dict[Any, Any]]:
    """Return how copies are emitted of which each is a separate block, by itself."""
    return lambda planned, host: {x.copy.nest: block(x) for x in planned}
