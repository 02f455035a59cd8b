"""Kernels bound by memory, and sums over CTAs: their seeded bugs."""

from __future__ import annotations

from ..rows import Golden, Mutation

GOLDEN: tuple[Golden, ...] = ()
MUTATIONS: tuple[Mutation, ...] = ()
