"""Registers of a warp group's WGMMA: rows and columns of the accumulator, and of A.

PTX ISA 9.1, 9.7.15.5.1.1 (register fragments).
"""

from __future__ import annotations

import functools

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES


def rows_of(full: np.ndarray, number: int) -> np.ndarray:
    """Return one warp's 16 rows of an accumulator, shape (2, 8, n / 8, 4, 2)."""
    return full[number * 16 : number * 16 + 16].reshape(2, 8, -1, 4, 2)


def lanes_of_rows(values: np.ndarray) -> np.ndarray:
    """Return registers of 32 lanes, shape (32, n / 2), in the order of `rows_of`.

    Register i of lane l is of row i / 2 % 2 * 8 + l / 4, column i / 4 * 8 + l % 4 * 2 + i % 2.
    """
    return values.reshape(8, 4, -1, 2, 2).transpose(3, 0, 2, 1, 4)


@functools.lru_cache(maxsize=8)
def a_fragment_index(itemsize: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, k) of each lane and element of the A fragment in registers, shape (32, n)."""
    per = 4 // itemsize
    lane = LANES[:, None]
    element = np.arange(4 * per)[None, :]
    register, inside = element // per, element % per
    row = register % 2 * 8 + lane // 4
    return row, register // 2 * 4 * per + lane % 4 * per + inside
