"""Pieces that the kernels of this family share: barriers set up, rows copied in and out."""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from ...golden.common import LOAD_1D, STORE_1D


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Draw small integers as float32: their sums are exact."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype("float32")


@T.inline
def init(bars, first, number, count):
    for s in T.serial(number):
        T.ptx.mbarrier.init.shared.b64(T.address_of(bars[first + s]), T.uint32(count))


@T.inline
def arrive(bar):
    T.ptx.mbarrier.arrive.shared.b64(T.address_of(bar))


@T.inline
def expect(bar, num_bytes):
    T.ptx.mbarrier.arrive.expect_tx.shared.b64(T.address_of(bar), T.uint32(num_bytes))


@T.inline
def copy_in(row, source, bar, num_bytes):
    T.ptx[LOAD_1D](
        T.address_of(row), T.address_of(source), T.uint32(num_bytes), T.address_of(bar)
    )  # fmt: skip


@T.inline
def copy_out(target, row, num_bytes):
    T.ptx[STORE_1D](T.address_of(target), T.address_of(row), T.uint32(num_bytes))
    T.ptx.cp.async_.bulk.commit_group()


@T.inline
def map_to(at, place, rank):
    T.ptx.mapa.shared__cluster.u32(
        at, T.cuda.cvta_generic_to_shared(T.address_of(place)), T.Cast("uint32", rank)
    )
