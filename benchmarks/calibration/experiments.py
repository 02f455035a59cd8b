"""The experiments: what each asks, its CUDA source, and the runs it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Experiment:
    """One open point about the chip.

    Attributes
    ----------
    point : str
        Letter of the point in docs/calibration.md.
    question : str
    stem : str
        Source file without `.cu`.
    runs : tuple of tuple of str
        Arguments of each run. What may fault has a process of its own: a fault ends its context.
    """

    point: str
    question: str
    stem: str
    runs: tuple[tuple[str, ...], ...] = ((),)

    @property
    def source(self) -> Path:
        """Return the CUDA file."""
        return FOLDER / f"{self.stem}.cu"


_REMOTE = ("arrive", "arrive.release.cluster", "store", "load", "multicast copy")

EXPERIMENTS = (
    Experiment("a", "Bytes that a TMA load posts for a box out of bounds", "a_oob_bytes"),
    Experiment("b", "A phase that expects fewer bytes than are copied", "b_under_expected"),
    Experiment("c", "Generic reads, then a copy into the slot without a proxy fence",
               "c_read_then_copy"),
    Experiment("d", "Leaving with bulk stores that have not read their source",
               "d_exit_pending_reads"),
    Experiment("f", "One try_wait on an open phase", "f_try_wait"),
    Experiment("g", "Fill of elements out of bounds", "g_oob_fill"),
    Experiment("h", "One named barrier reached from two places", "h_barrier_sites",
               tuple((form, who) for who in ("warps", "lanes")
                     for form in ("bar.sync", "barrier.sync"))),
    Experiment("e", "Access to shared memory of a CTA that has left its cluster",
               "e_remote_arrive",
               (("none", "0"), *((access, "1000", "resident") for access in _REMOTE),
                *((access, delay) for access in _REMOTE for delay in ("0", "1000", "1000000")))),
)  # fmt: skip
