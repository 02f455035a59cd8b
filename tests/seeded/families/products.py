"""Products beyond the plain one: their seeded bugs."""

from __future__ import annotations

from ..rows import Golden, Mutation

GOLDEN: tuple[Golden, ...] = ()
MUTATIONS: tuple[Mutation, ...] = ()
