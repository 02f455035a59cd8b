"""Vector clocks, exact: an epoch per warp and one bit per asynchronous event.

Every warp owns a `Bundle` of three clocks, one per proxy (what its generic accesses, its
asynchronous accesses of shared memory and of global memory may rely on), and a fourth, `narrow`,
of what it knows only through synchronisation of a too narrow scope: it never makes an access
legal, it only tells a wrong scope from a missing barrier.
"""

from __future__ import annotations

import numpy as np


class Clock:
    """A set of known accesses: epochs of warps, and asynchronous events as bits of one integer."""

    __slots__ = ("epochs", "events")

    def __init__(self, num_warps: int) -> None:
        self.epochs = np.zeros(num_warps, np.int64)
        self.events = 0

    def copy(self) -> Clock:
        """Return an independent copy."""
        other = Clock.__new__(Clock)
        other.epochs, other.events = self.epochs.copy(), self.events
        return other

    def join(self, other: Clock) -> None:
        """Learn everything that `other` knows."""
        np.maximum(self.epochs, other.epochs, out=self.epochs)
        self.events |= other.events

    def meet(self, other: Clock) -> None:
        """Keep only what `other` knows too."""
        np.minimum(self.epochs, other.epochs, out=self.epochs)
        self.events &= other.events


class Bundle:
    """The clocks of one warp, or what a release publishes."""

    __slots__ = ("async_global", "async_shared", "generic", "narrow")

    def __init__(self, num_warps: int) -> None:
        self.generic = Clock(num_warps)
        self.async_shared = Clock(num_warps)
        self.async_global = Clock(num_warps)
        self.narrow = Clock(num_warps)

    def join(self, other: Bundle) -> None:
        """Acquire what a release of sufficient scope published."""
        self.generic.join(other.generic)
        self.async_shared.join(other.async_shared)
        self.async_global.join(other.async_global)
        self.narrow.join(other.narrow)

    def join_narrow(self, other: Bundle) -> None:
        """Acquire through a too narrow scope: completed asynchronous operations still count.

        Common practice in Hopper kernels: a remote release of a slot after `wgmma.wait_group`
        carries CTA scope, because nothing of generic memory is published.
        """
        for mine, theirs in (
            (self.generic, other.generic),
            (self.async_shared, other.async_shared),
            (self.async_global, other.async_global),
        ):
            mine.events |= theirs.events
        self.narrow.join(other.generic)
        self.narrow.join(other.narrow)

    def join_events(self, events: int) -> None:
        """Learn that asynchronous operations of the async proxy are complete."""
        self.generic.events |= events
        self.async_shared.events |= events
        self.async_global.events |= events

    def copy(self) -> Bundle:
        """Return an independent copy."""
        other = Bundle.__new__(Bundle)
        other.generic = self.generic.copy()
        other.async_shared = self.async_shared.copy()
        other.async_global = self.async_global.copy()
        other.narrow = self.narrow.copy()
        return other


class Releases:
    """What was released at one address of global memory, by CTA and scope.

    A release and an acquire meet if they are of one CTA, or if both have a scope beyond it.
    """

    def __init__(self) -> None:
        self.entries: dict[tuple[object, bool], Bundle] = {}

    def publish(self, cta: object, scope: str, bundle: Bundle) -> None:
        """Add a release."""
        key = (cta, scope == "cta")
        if key in self.entries:
            self.entries[key].join(bundle)
        else:
            self.entries[key] = bundle.copy()

    def acquire(self, clock: Bundle, cta: object, scope: str) -> None:
        """Let an acquire learn every release that it meets; of others, that they ran before."""
        for (owner, narrow), bundle in self.entries.items():
            if owner is cta or not (narrow or scope == "cta"):
                clock.join(bundle)
            else:
                clock.narrow.join(bundle.generic)
