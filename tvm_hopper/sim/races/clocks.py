"""Vector clocks, exact: an epoch per warp and one bit per asynchronous event.

Every warp owns a `Bundle` of three clocks, one per proxy (knowledge of its generic accesses, its
asynchronous accesses of shared memory and of global memory may rely on), and a fourth, `narrow`,
of knowledge through synchronisation of a too narrow scope only: it never makes an access
legal, it only tells a wrong scope from a missing barrier.

Two more, which most kernels never need, are of `fence.sc` (see `Bundle.fenced`).
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Epochs:
    """The newest known epoch of each warp, for clusters with any known epoch.

    An array for each such cluster. Arrays are never changed in place: copies share them.
    """

    __slots__ = ("parts", "size")

    def __init__(self, size: int) -> None:
        self.size = size  # warps of a cluster
        self.parts: dict[int, np.ndarray] = {}

    def __getitem__(self, warp: int) -> int:
        """Return the epoch that is known of a warp."""
        part = self.parts.get(warp // self.size)
        return 0 if part is None else int(part[warp % self.size])

    def __setitem__(self, warp: int, epoch: int) -> None:
        """Set the known epoch of a warp."""
        cluster, place = divmod(warp, self.size)
        part = self.parts.get(cluster)
        part = np.zeros(self.size, np.int64) if part is None else part.copy()
        part[place] = epoch
        self.parts[cluster] = part

    def copy(self) -> Epochs:
        """Return an independent copy."""
        other = Epochs.__new__(Epochs)
        other.size, other.parts = self.size, self.parts.copy()
        return other

    def join(self, other: Epochs) -> None:
        """Take the newer epoch of each warp."""
        for cluster, theirs in other.parts.items():
            mine = self.parts.get(cluster)
            if mine is None:
                self.parts[cluster] = theirs
            elif mine is not theirs:
                self.parts[cluster] = np.maximum(mine, theirs)

    def meet(self, other: Epochs) -> None:
        """Take the older epoch of each warp."""
        self.parts = {
            cluster: mine if mine is theirs else np.minimum(mine, theirs)
            for cluster, mine in self.parts.items()
            if (theirs := other.parts.get(cluster)) is not None
        }

    def holds(self, other: Epochs) -> bool:
        """Return whether no epoch of the other is newer."""
        return all(
            (mine := self.parts.get(cluster)) is theirs
            or bool((theirs <= (0 if mine is None else mine)).all())
            for cluster, theirs in other.parts.items()
        )


class Clock:
    """A set of known accesses: epochs of warps, and asynchronous events as bits of one integer."""

    __slots__ = ("epochs", "events")

    def __init__(self, cluster_warps: int) -> None:
        self.epochs = Epochs(cluster_warps)
        self.events = 0

    def copy(self) -> Clock:
        """Return an independent copy."""
        other = Clock.__new__(Clock)
        other.epochs, other.events = self.epochs.copy(), self.events
        return other

    def join(self, other: Clock) -> None:
        """Learn everything that `other` knows."""
        self.epochs.join(other.epochs)
        self.events |= other.events

    def holds(self, other: Clock) -> bool:
        """Return whether this one knows everything that `other` knows."""
        return not other.events & ~self.events and self.epochs.holds(other.epochs)

    def meet(self, other: Clock) -> None:
        """Keep only the knowledge that `other` shares."""
        self.epochs.meet(other.epochs)
        self.events &= other.events


class TensorMapClocks:
    """Knowledge released to the tensormap proxy, and knowledge acquired about each tensor map.

    PTX ISA 9.1, 9.7.13.4, fence.proxy: ".release proxy fence can form a release sequence that
    synchronizes with an acquire sequence that contains a .acquire proxy fence"; the acquire is of
    the 128 bytes that it names.

    - `released` (dict): by CTA and scope of the release, the knowledge before it.
    - `acquired` (dict): by address of a map, the knowledge that copies after the acquire may rely
      on when they read it.
    """

    __slots__ = ("acquired", "released")

    def __init__(self) -> None:
        self.released: dict[tuple[Any, str], Clock] = {}
        self.acquired: dict[int, Clock] = {}

    def copy(self) -> TensorMapClocks:
        """Return an independent copy."""
        other = TensorMapClocks()
        other.join(self)
        return other

    def join(self, other: TensorMapClocks) -> None:
        """Learn of all that `other` has."""
        for key, clock in other.released.items():
            self.release(*key, clock)
        for address, clock in other.acquired.items():
            _join_into(self.acquired, address, clock)

    def release(self, cta: Any, scope: str, known: Clock) -> None:
        """Release the current knowledge."""
        _join_into(self.released, (cta, scope), known)

    def acquire(self, address: int, cta: Any, scope: str, cluster_warps: int) -> None:
        """Let copies after this rely on the releases that it meets."""
        _join_into(self.acquired, address, Clock(cluster_warps))
        for (owner, theirs), clock in self.released.items():
            if reaches(owner, cta, theirs) and reaches(cta, owner, scope):
                self.acquired[address].join(clock)


def _join_into(table: dict[Any, Clock], key: Any, clock: Clock) -> None:
    if key in table:
        table[key].join(clock)
    else:
        table[key] = clock.copy()


class Bundle:
    """The clocks of one warp, or those that a release publishes.

    Attributes
    ----------
    fenced : Bundle or None
        Knowledge before an earlier `fence.sc`: a relaxed write publishes it to threads that read
        that write and then execute `fence.sc`.
    seen : Bundle or None
        Knowledge that this thread has read from such writes: its next `fence.sc` makes it known.
    tensormaps : TensorMapClocks or None
        Knowledge that the tensormap proxy may rely on, if the kernel changes tensor maps.

    PTX ISA, memory consistency model, "Fence-SC": any two `fence.sc` are ordered. With F1 before a
    relaxed write and F2 after a read of that write, by whatever barriers, F2 before F1 would put
    the read before the write in causality order: so F1 is before F2. That also holds if
    one thread fences and another writes, which `fence.acq_rel` does not order.
    """

    __slots__ = (
        *("async_global", "async_shared", "fenced", "generic", "narrow", "seen", "tensormaps"),
    )

    def __init__(self, cluster_warps: int) -> None:
        self.generic = Clock(cluster_warps)
        self.async_shared = Clock(cluster_warps)
        self.async_global = Clock(cluster_warps)
        self.narrow = Clock(cluster_warps)
        self.fenced: Bundle | None = None
        self.seen: Bundle | None = None
        self.tensormaps: TensorMapClocks | None = None

    def join(self, other: Bundle) -> None:
        """Acquire the knowledge of a release with sufficient scope."""
        self.generic.join(other.generic)
        self.async_shared.join(other.async_shared)
        self.async_global.join(other.async_global)
        self.narrow.join(other.narrow)
        if other.fenced is not None:
            self.fence(other.fenced)
        if other.seen is not None:
            self.see(other.seen)
        if other.tensormaps is not None:
            self.of_maps().join(other.tensormaps)

    def holds(self, other: Bundle) -> bool:
        """Return whether this one knows everything that `other` knows.

        Tensor maps are not compared: the answer is no if there are any.
        """
        for mine, theirs in ((self.fenced, other.fenced), (self.seen, other.seen)):
            if theirs is not None and (mine is None or not mine.holds(theirs)):
                return False
        return (
            other.tensormaps is None
            and self.generic.holds(other.generic)
            and self.async_shared.holds(other.async_shared)
            and self.async_global.holds(other.async_global)
            and self.narrow.holds(other.narrow)
        )

    def of_maps(self) -> TensorMapClocks:
        """Return the clocks of tensor maps, for updates."""
        if self.tensormaps is None:
            self.tensormaps = TensorMapClocks()
        return self.tensormaps

    def fence(self, known: Bundle) -> None:
        """Note a `fence.sc` after the current knowledge."""
        if self.fenced is None:
            self.fenced = known.plain()
        else:
            self.fenced.join(known.plain())

    def see(self, known: Bundle) -> None:
        """Note the knowledge of a relaxed read; a `fence.sc` after it makes it known."""
        if self.seen is None:
            self.seen = known.plain()
        else:
            self.seen.join(known.plain())

    def plain(self) -> Bundle:
        """Return a copy without the knowledge of `fence.sc`."""
        other = Bundle.__new__(Bundle)
        other.generic = self.generic.copy()
        other.async_shared = self.async_shared.copy()
        other.async_global = self.async_global.copy()
        other.narrow = self.narrow.copy()
        other.fenced = other.seen = None
        other.tensormaps = None if self.tensormaps is None else self.tensormaps.copy()
        return other

    def join_narrow(self, other: Bundle, accesses: int) -> None:
        """Acquire through a too narrow scope: completed asynchronous operations still count.

        Not so events that stand for ordinary accesses, whose bits are `accesses`.

        Common practice in Hopper kernels: a remote release of a slot after `wgmma.wait_group`
        carries CTA scope, because nothing of generic memory is published.
        """
        for mine, theirs in (
            (self.generic, other.generic),
            (self.async_shared, other.async_shared),
            (self.async_global, other.async_global),
        ):
            mine.events |= theirs.events & ~accesses
        self.narrow.join(other.generic)
        self.narrow.join(other.narrow)

    def join_events(self, events: int) -> None:
        """Learn that asynchronous operations of the async proxy are complete."""
        self.generic.events |= events
        self.async_shared.events |= events
        self.async_global.events |= events

    def copy(self) -> Bundle:
        """Return an independent copy."""
        other = self.plain()
        if self.fenced is not None:
            other.fenced = self.fenced.plain()
        if self.seen is not None:
            other.seen = self.seen.plain()
        return other


_EVERYWHERE = ("gpu", "sys")  # scopes that hold every CTA of a launch


def reaches(owner: Any, other: Any, scope: str) -> bool:
    """Return whether a scope of one CTA's thread holds another CTA's (PTX ISA, "Scope")."""
    if owner is other:
        return True
    if scope == "cluster":
        return other in owner.cluster
    return scope != "cta"


Author = tuple[int, int]  # a warp's number and its lanes, as bits
Entries = dict[tuple[Any, str, Author], Bundle]


class Releases:
    """Knowledge released at one address, by CTA, scope and thread.

    A release and an acquire meet if each one's scope holds the other's thread (PTX ISA, memory
    consistency model, "Morally strong"), and if the acquire reads what the release wrote, or what
    read-modify-writes made of it ("Observation order"): a plain store by another thread ends that.
    """

    def __init__(self) -> None:
        self.entries: Entries = {}
        self.wide: Bundle | None = None  # releases that reach every CTA, joined
        self.narrow: Entries = {}  # other releases
        self.fenced: Entries = {}  # relaxed writes after a `fence.sc`

    def publish(self, cta: Any, scope: str, author: Author, bundle: Bundle) -> None:
        """Add a release."""
        key = cta, scope, author
        self._add(self.entries, key, bundle)
        if scope not in _EVERYWHERE:
            self.narrow[key] = self.entries[key]
        elif self.wide is None:
            self.wide = bundle.copy()
        else:
            self.wide.join(bundle)

    def publish_fenced(self, cta: Any, scope: str, author: Author, bundle: Bundle) -> None:
        """Add the knowledge before a `fence.sc`, by a relaxed write."""
        self._add(self.fenced, (cta, scope, author), bundle)

    def overwrite(self, author: Author) -> None:
        """Forget the releases of others: a store has replaced their values."""
        kept, self.entries = self.entries, {}
        self.narrow, self.wide = {}, None
        for (cta, scope, by), bundle in kept.items():
            if by == author:
                self.publish(cta, scope, by, bundle)
        self.fenced = {key: bundle for key, bundle in self.fenced.items() if key[2] == author}

    @staticmethod
    def _add(entries: Entries, key: tuple[Any, str, Author], bundle: Bundle) -> None:
        if key in entries:
            entries[key].join(bundle)
        else:
            entries[key] = bundle.copy()

    def acquire(self, clock: Bundle, cta: Any, scope: str) -> None:
        """Let an acquire learn every release that it meets; of others, that they ran before."""
        entries = self.entries
        if scope in _EVERYWHERE:
            entries = self.narrow
            if self.wide is not None:
                clock.join(self.wide)
        for (owner, theirs, _), bundle in entries.items():
            if reaches(owner, cta, theirs) and reaches(cta, owner, scope):
                clock.join(bundle)
            else:
                clock.narrow.join(bundle.generic)

    def see(self, clock: Bundle, cta: Any, scope: str) -> None:
        """Let a read see the knowledge before a `fence.sc`."""
        for (owner, theirs, _), bundle in self.fenced.items():
            if reaches(owner, cta, theirs) and reaches(cta, owner, scope):
                clock.see(bundle)
