"""Record what passes decided about each kernel, for `explain`: one dataclass for each kind.

Notes travel as JSON text in an attribute of the function (`ir.PLAN_ATTR`).  Passes never read them:
they talk to one another through the IR itself.

A kernel's key is its number: its place among the function's kernels.  No pass, ours or TVM's, adds,
drops or moves a kernel between the first note and the last, so the number holds; where that is not
so after all, later notes are dropped rather than shown for another kernel.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.facts.arch import ARCHS, Arch
from tvm_hopper.requests.targets import arch_of


@dataclass(frozen=True)
class MmaNote:
    """A multiply-add by WGMMA."""

    block: str
    tile: tuple[int, int, int]  # m, n, k of one consumer and one stage
    instruction: str
    accumulator_registers: int
    choice: str = ""  # the best configurations by estimate, a line each; empty if none was chosen


@dataclass(frozen=True)
class StoreNote:
    """Bytes that a thread stores into a tensor at once."""

    tensor: str
    num_bytes: int


@dataclass(frozen=True)
class TensorMapNote:
    """A tensor map; extents and box in elements, innermost first.

    A box takes each `steps`-th element of a dimension. L2 fetches `l2_promotion` bytes at once.
    """

    tensor: str
    dims: tuple[str, ...]
    box: tuple[int, ...]
    swizzle: int
    box_bytes: int
    steps: tuple[int, ...]
    l2_promotion: int
    num_copies: int = 1  # that share it


@dataclass(frozen=True)
class RingNote:
    """Loads that run ahead: slots, and the bytes that one iteration's loads bring.

    Of these `bytes_in_parts` are brought by threads that each make a part and arrive for it, and
    no barrier counts them.
    """

    channel: int
    num_slots: int
    tx_bytes: int
    by_group: bool = False  # they complete in groups of the threads that make them
    stores_in_flight: int = 0  # slots that asynchronous stores may still read
    bytes_in_parts: int = 0


@dataclass(frozen=True)
class StoreRingNote:
    """A tile that threads write and that leaves by asynchronous stores, in slots of its own."""

    tile: str
    num_slots: int
    slot_bytes: int


@dataclass(frozen=True)
class ArrivalsNote:
    """Arrivals that complete the barriers of a channel's slot, besides the bytes."""

    channel: int
    full: int
    empty: int


@dataclass(frozen=True)
class RolesNote:
    """A kernel split into a producer and consumers."""

    producer_threads: int
    consumer_threads: int
    pending: int  # WGMMA groups in flight over an iteration
    registers: tuple[int, int] | None  # of a producer's and a consumer's thread; None: not moved
    turns: int = 1  # consumer groups (ping-pong)


@dataclass(frozen=True)
class TilesNote:
    """The order of output tiles, and the thread blocks that share them."""

    raster_group: int
    persistent: int | None  # thread blocks; -1: by the device; None: one for each tile
    tiles: str = ""  # tiles that a launch distributes, where the device counts the blocks
    cluster: int = 1  # blocks that form a cluster, with a tile each
    curve: bool = False  # along a Hilbert curve through squares of a group


@dataclass(frozen=True)
class RowsNote:
    """The rows that a kernel was chosen for, out of any number, and the time estimated for them."""

    rows: int
    tenths: int  # of a microsecond


@dataclass(frozen=True)
class ConfigurationNote:
    """The configuration that a tuner chose."""

    text: str


@dataclass(frozen=True)
class SmemNote:
    """A part of a thread block's shared memory, in bytes."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class RemarkNote:
    """A remark on what the lowering did with a request."""

    text: str


@dataclass(frozen=True)
class ElementsNote:
    """A tensor that threads access element by element, see `analysis/element_accesses.py`."""

    tensor: str
    num_bytes: int  # of a thread at once
    fetched: int  # bytes of memory after them


@dataclass(frozen=True)
class FallbackNote:
    """A slower form that the lowering had to take."""

    text: str


Note = (
    MmaNote
    | StoreNote
    | TensorMapNote
    | RingNote
    | StoreRingNote
    | ArrivalsNote
    | RolesNote
    | TilesNote
    | RowsNote
    | ConfigurationNote
    | SmemNote
    | RemarkNote
    | ElementsNote
    | FallbackNote
)
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in Note.__args__}


def to_json(note: Note) -> list[Any]:
    """Return the kind and the fields of a note, as JSON has them."""
    return [type(note).__name__, asdict(note)]


def from_json(value: Any) -> Note:
    """Make a note of what `to_json` returned, or the same after its way through a text."""
    kind, fields = value
    made: Note = _KINDS[kind](
        **{name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()}
    )
    return made


@dataclass(frozen=True)
class FunctionNotes:
    """The notes of one function: the number of its kernels, and what is known of some of them.

    `arch` is what they were planned for: the host function, which keeps the notes, does not say it.
    """

    num_kernels: int
    kernels: dict[int, tuple[Note, ...]]
    arch: Arch


def read_notes(func: Any) -> FunctionNotes | None:
    """Return the notes of a function, None if no pass has noted anything."""
    if not func.attrs or ir.PLAN_ATTR not in func.attrs:
        return None
    known = json.loads(str(func.attrs[ir.PLAN_ATTR]))
    kernels = {
        int(number): tuple(map(from_json, notes)) for number, notes in known["kernels"].items()
    }
    arch = ARCHS[known["arch"]]
    return FunctionNotes(known["num_kernels"], dict(sorted(kernels.items())), arch)


def note_kernels(func: tirx.PrimFunc, notes: Mapping[int, Iterable[Note]]) -> tirx.PrimFunc:
    """Add notes about kernels, by their number, to those of the passes before.

    A function that one thread runs as a whole has none: `explain` speaks of kernels.
    """
    added = {number: tuple(own) for number, own in notes.items()}
    if not any(added.values()):
        return func
    count = _count_kernels(func)
    if not count:
        return func
    old = read_notes(func) or FunctionNotes(count, {}, arch_of(func))
    if old.num_kernels != count:  # numbers do not hold any more
        return func
    merged = {
        str(number): [*old.kernels.get(number, ()), *added.get(number, ())]
        for number in sorted({*old.kernels, *added})
    }
    return _with_notes(func, old.arch.name, count, merged)


def renumber_notes(
    func: tirx.PrimFunc, doubled: Collection[int], behind: Collection[int] = ()
) -> tirx.PrimFunc:
    """Keep notes by their kernels where some have become two.

    A note describes the first of the two kernels, or the second one if `behind` names it.
    """
    old = read_notes(func)
    if old is None or not doubled:
        return func
    kernels = {
        str(number + sum(other < number for other in doubled) + (number in behind)): own
        for number, own in old.kernels.items()
    }
    return _with_notes(func, old.arch.name, old.num_kernels + len(doubled), kernels)


def _with_notes(
    func: tirx.PrimFunc, arch: str, count: int, kernels: Mapping[str, Iterable[Note]]
) -> tirx.PrimFunc:
    notes = {number: list(map(to_json, own)) for number, own in kernels.items()}
    text = json.dumps({"arch": arch, "num_kernels": count, "kernels": notes})
    return func.with_attr(ir.PLAN_ATTR, text)


def _count_kernels(func: tirx.PrimFunc) -> int:
    """Count kernels before and after loops over threads have become attributes."""
    return len(ir.kernels(func)) or len(ir.outermost_thread_extents(func.body))
