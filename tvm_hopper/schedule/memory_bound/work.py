"""What a memory-bound kernel has to do, as far as its estimate asks."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_hopper.facts.programming_model import THREAD_ACCESS_BYTES


@dataclass(frozen=True)
class LoadedRows:
    """What a kernel over rows loads, whatever it does to them.

    Parameters
    ----------
    rows : int or None
        Rows, None if they are known at run time only.
    columns : int
        Elements of a row.
    vector : int
        Elements of the widest vector that is legal.
    loaded : int
        Bytes that are loaded for each element.
    """

    rows: int | None
    columns: int
    vector: int
    loaded: int


@dataclass(frozen=True)
class RowWork(LoadedRows):
    """What a kernel does to a row.

    Parameters
    ----------
    rows, columns, vector, loaded
        As of `LoadedRows`.
    shared : int
        Bytes for each column that all rows share.
    kept : int
        Bytes of results for each element that wait in registers.
    reductions : int
        One after another.
    again : bool
        Whether a row can be loaded again behind the last of them.
    moved : int
        Bytes that are loaded and stored for each element.
    passes : int
        Times that a kernel which streams rows loads them.
    unstaged, unshared : str
        Why rows, and what they share, cannot wait in shared memory, if they cannot.
    beside : bool
        Whether rows read values of their own, as labels, late and out of memory.
    splits : bool
        Whether thread blocks can each reduce a row and store a part of it: nothing else is stored.
    tensors : int
        How many rows share.
    moments : bool
        Whether the reductions are a mean and the squares around it: a cluster's are one exchange.
    """

    shared: int
    kept: int
    reductions: int
    again: bool = False
    moved: int = 0
    passes: int = 2
    unstaged: str = ""
    unshared: str = ""
    beside: bool = False
    splits: bool = False
    tensors: int = 0
    moments: bool = False

    @property
    def waits_late(self) -> bool:
        """Whether what is behind the last reduction waits for more than the row itself."""
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
    """What a persistent kernel does to a row, and to sums of columns beside it.

    Parameters
    ----------
    rows, columns, vector, loaded
        As of `LoadedRows`.
    held : int
        Bytes of registers for each element: of rows, of what all rows share, and of sums.
    moved : int
        Bytes that are loaded and stored for each element.
    sums : int
        Sums of columns.
    narrow : int
        Bytes of the narrowest element that is loaded of a row.
    """

    held: int
    moved: int
    sums: int
    narrow: int = 2
