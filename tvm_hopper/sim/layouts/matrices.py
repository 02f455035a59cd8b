"""8x8 matrices of 16-bit elements in registers: ldmatrix, stmatrix, movmatrix.

PTX ISA 9.1, 9.7.14.5.15 to 9.7.14.5.17: lane l holds the elements 2 (l % 4) and 2 (l % 4) + 1 of
row l / 4 in one register, of column l / 4 with `.trans`.
"""

from __future__ import annotations

import numpy as np


def registers_of(matrices: np.ndarray, transposed: bool) -> np.ndarray:
    """Return the registers of 32 lanes, uint32 (n, 32).

    Parameters
    ----------
    matrices : np.ndarray
        uint16, shape (n, 8, 8).
    transposed : bool
        `.trans`.
    """
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    return np.ascontiguousarray(matrices).reshape(-1, 32, 2).view(np.uint32)[..., 0]


def matrices_of(registers: np.ndarray, transposed: bool) -> np.ndarray:
    """Return the matrices, uint16 (n, 8, 8), that registers hold: the inverse of `registers_of`."""
    found = np.ascontiguousarray(registers, np.uint32).view(np.uint16).reshape(-1, 8, 8)
    return found.transpose(0, 2, 1) if transposed else found
