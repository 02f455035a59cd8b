"""Values of `MatmulConfig` fields that have several parts.

    split_k=4                        four parts, added as the package chooses
    split_k="stream"                 a mode alone
    split_k=SplitK(4, "serial")      both

A value of which one part is given is the same as that part: `SplitK(4)` becomes 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.requests.keys import CURVES
from tvm_hopper.schedule.arguments import as_choice, as_int
from tvm_hopper.schedule.given_fields import GivenFields, shortest

from .direct_shape import DirectShape
from .dot_shape import DotShape
from .split import MODES, THREADS

MOST_BLOCKS = (1 << 31) - 1  # of a grid, in x
TMA = "tma"
STORES = (TMA, THREADS)  # mechanisms by which outputs leave a thread block
FORMS = ("tiles", "untransposed", "transposed", "dots", "direct")
TILES, UNTRANSPOSED, TRANSPOSED, DOTS, DIRECT = FORMS
WEIGHTS = "weights"  # of which loads start before earlier launches have ended


@dataclass(frozen=True, repr=False)
class Raster(GivenFields):
    """Rasterization: the order in which output tiles are computed, for the L2 cache.

    Parameters
    ----------
    group : int, optional
        Rows of output tiles in a group; 1 is the hardware's order. None: from the shape.
    curve : str, optional
        "hilbert": a Hilbert curve through squares of tiles, whose side is the largest power of two
        up to `group`. None: down each column of a group.
    """

    group: int | None = None
    curve: str | None = None

    def __post_init__(self) -> None:
        self.set_ints("Raster", {"group": (1, MOST_BLOCKS)})
        self.set_fields(curve=as_choice("Raster", "curve", self.curve, CURVES))


@dataclass(frozen=True, repr=False)
class SplitK(GivenFields):
    """Split-K: several thread blocks sum parts of one output tile.

    Parameters
    ----------
    parts : int, optional
        Thread blocks that share the sum of one output tile; 1: no split. None: from the shape.
    mode : str, optional
        How the parts are added:

        * "cluster": in a cluster of 2 to 8 blocks, through shared memory, in a fixed order.
        * "workspace": up to 64 blocks store partial sums to global memory, and a second kernel adds
          them in a fixed order. The caller's allocator (PyTorch's) gives that memory for the stream
          of the call. With TVM's own tensors it belongs to the calling thread, whose calls must
          then share one stream.
        * "caller": "workspace" if the call has an allocator, else "cluster".
        * "serial": up to 64 blocks add in a fixed order to a buffer of the output's size, and the
          last one stores. Without an allocator: "cluster".
        * "atomic": up to 64 blocks add to the output by atomic reductions, in any order, each
          rounded to the output's type.
        * "stream" (stream-K): `persistent` blocks (None: one for each SM) take equal shares of all
          k steps, and add a tile's parts in order. Without an allocator: whole tiles. Excludes
          `parts`.

        None: "cluster" if `parts` is given, else the faster of "caller" and "cluster".
    """

    parts: int | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        self.set_ints("SplitK", {"parts": (1, None)})
        self.set_fields(mode=as_choice("SplitK", "mode", self.mode, MODES))


@dataclass(frozen=True, repr=False)
class TmaStore(GivenFields):
    """TMA stores the output from shared memory.

    Parameters
    ----------
    parts : int, optional
        Column parts that each consumer stores one after another through the same shared memory.
        None: the fewest that fit next to the ring.
    operand_slots : int, optional
        Slots for parts of an epilogue operand of the output's shape (a residual), which TMA
        prefetches into separate shared memory; outputs of the same type are stored from there.
        0: threads load it, as they do if TMA cannot. None: as many as fit; stages beyond the third
        are given up for them.
    """

    parts: int | None = None
    operand_slots: int | None = None

    def __post_init__(self) -> None:
        self.set_ints("TmaStore", {"parts": (1, None), "operand_slots": (0, None)})


def as_raster(where: str, value: Any) -> int | str | Raster | None:
    """Return a rasterization: the rows of a group, a curve, or both."""
    return _as_part(where, "raster", value, CURVES, Raster, MOST_BLOCKS)


def as_split_k(where: str, value: Any) -> int | str | SplitK | None:
    """Return a split of sums: the number of parts, how they are added, or both."""
    return _as_part(where, "split_k", value, MODES, SplitK)


def as_store(where: str, value: Any) -> str | TmaStore | None:
    """Return how outputs leave: a mechanism, or TMA with its parts and slots."""
    if isinstance(value, TmaStore):
        return value if value.given else TMA
    return _as_word(where, "store", value, STORES, "an hs.TmaStore")


def as_form(where: str, value: Any) -> str | DotShape | DirectShape | None:
    """Return the form of a kernel: tiles, or threads that load for themselves."""
    if isinstance(value, (DotShape, DirectShape)):
        return value
    return _as_word(where, "form", value, FORMS, "an hs.DotShape, an hs.DirectShape")


def as_early_launch(where: str, value: Any) -> bool | str | None:
    """Return whether a kernel starts early: a bool, "weights" or None."""
    if isinstance(value, bool):
        return value
    return _as_word(where, "early_launch", value, (WEIGHTS,), "True, False")


def _as_part(
    where: str,
    name: str,
    value: Any,
    words: Sequence[str],
    whole: type[Any],
    most: int | None = None,
) -> Any:
    """Return a number, a word, an object that has both, or None."""
    if isinstance(value, whole):
        return shortest(value)
    if value is None or value in words:
        return value
    if isinstance(value, (str, float, bool)):
        need = f"an int, one of {', '.join(map(repr, words))}, an hs.{whole.__name__} or None"
        raise cannot_schedule(where, f"{name}={value!r}", need)
    return as_int(where, name, value, 1, most)


def _as_word(where: str, name: str, value: Any, legal: Sequence[str], others: str) -> str | None:
    if value is None or (isinstance(value, str) and value in legal):
        return value
    need = f"one of {', '.join(map(repr, legal))}, {others} or None"
    raise cannot_schedule(where, f"{name}={value!r}", need)
