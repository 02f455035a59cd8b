"""What a validator of tasks does not look at: opaque bodies, bytes, own barriers, other CTAs."""

from __future__ import annotations

from ..rows import Golden, Mutation

GOLDEN: tuple[Golden, ...] = ()
MUTATIONS: tuple[Mutation, ...] = ()
