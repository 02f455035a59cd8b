"""Pieces that the kernels of this family share: barriers set up, rows copied in and out."""

import numpy as np
from tvm.script import tirx as T

from tests.sim import ptx


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Draw small integers as float32: their sums are exact."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype("float32")


@T.inline
def init(bars, first, number, count):
    for s in T.serial(number):
        ptx.init_mbarrier(bars[first + s], count)


@T.inline
def arrive(bar):
    T.ptx.mbarrier.arrive.shared.b64(T.address_of(bar))


@T.inline
def expect(bar, num_bytes):
    ptx.expect_bytes(bar, num_bytes)


@T.inline
def copy_in(row, source, bar, num_bytes):
    ptx.load_bytes(row, source, num_bytes, bar)


@T.inline
def copy_out(target, row, num_bytes):
    ptx.store_bytes(target, row, num_bytes)
    T.ptx.cp.async_.bulk.commit_group()


@T.inline
def map_to(at, place, rank):
    ptx.map_to_rank(at, place, rank)
