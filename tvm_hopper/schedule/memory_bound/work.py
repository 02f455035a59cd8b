"""The work of a memory-bound kernel, as its estimate needs it."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper.facts.programming_model import THREAD_ACCESS_BYTES


@dataclass(frozen=True)
class LoadedRows:
    """The loads of a row kernel."""

    rows: int | None  # None: known at run time only
    columns: int  # elements of a row
    vector: int  # elements of the widest vector that is legal
    loaded: int  # bytes that are loaded for each element


@dataclass(frozen=True)
class RowWork(LoadedRows):
    """The work of a kernel per row."""

    shared: int  # bytes for each column that all rows share
    kept: int  # bytes of results for each element that wait in registers
    reductions: int  # one after another
    again: bool = False  # a row can be loaded again after the last of them
    moved: int = 0  # bytes that are loaded and stored for each element
    shift: int = 0  # of `columns`, elements of the row before: rows begin at any element
    passes: int = 2  # times that a kernel which streams rows loads them
    unstaged: str = ""  # why rows cannot wait in shared memory, if they cannot
    unshared: str = ""  # why what they share cannot
    beside: bool = False  # rows read values of their own, as labels, late and out of memory
    splits: bool = False  # nothing is stored but parts of rows: blocks can each reduce a whole one
    tensors: int = 0  # that rows share
    instructions: int = 0  # of those results, for each element
    moments: bool = False  # a mean and the squares around it: one exchange of a cluster

    @property
    def waits_late(self) -> bool:
        """Whether what is after the last reduction waits for more than the row itself."""
        return self.shared > 0 or self.beside

    @property
    def is_one_tensor(self) -> bool:
        """Whether rows are loaded from one tensor."""
        return self.vector * self.loaded <= THREAD_ACCESS_BYTES

    @property
    def is_light(self) -> bool:
        """Whether rows of one tensor are reduced once, and stored.

        Registers wait for one barrier.
        """
        return self.moved > self.loaded and self.reductions == 1 and self.is_one_tensor

    @property
    def is_pair(self) -> bool:
        """Whether rows of two tensors alone are reduced once, and stored: a softmax's gradient.

        With a vector of each a thread waits for one barrier, and as many threads as there can be
        load.
        """
        two = THREAD_ACCESS_BYTES < self.vector * self.loaded <= 2 * THREAD_ACCESS_BYTES
        return two and self.moved > self.loaded and self.reductions == 1 and not self.waits_late


@dataclass(frozen=True)
class PersistentWork(LoadedRows):
    """The work of a persistent kernel per row, with its column sums."""

    held: int  # bytes of registers for each element: of rows, of what all rows share, and of sums
    moved: int  # bytes that are loaded and stored for each element
    sums: int  # of columns
    narrow: int = 2  # bytes of the narrowest element that is loaded of a row
