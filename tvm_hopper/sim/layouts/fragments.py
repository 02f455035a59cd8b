"""Fragment layouts of `mma.sync`: the matrix element of each register of each lane.

Written from PTX ISA 9.1, 9.7.14.5.1 to 9.7.14.5.13. All shapes but one follow one rule: with e
elements in a register, g = lane / 4 and t = lane % 4, element x of register r is

    of A, 16 rows   row g + 8 (r % 2), column t e + x + 4 e (r / 2)
    of A, 8 rows    row g, column t e + x + 4 e r
    of B            row t e + x + 4 e r, column g
    of C            row g + 8 (i / 2), column 2 t + i % 2, for the i-th element

m8n8k4 with f16 (9.7.14.5.1) is four products, each of eight lanes: l and l + 16 for l / 4 = number.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES

COLUMNS = 8  # of every product
QUADS = 4  # products of one m8n8k4
_G, _T = LANES[:, None] // 4, LANES[:, None] % 4
_QUAD, _HIGH = LANES[:, None] // 4 % 4, LANES[:, None] // 16 * 4


class Places(NamedTuple):
    """Product, row and column of each element of a fragment; each has shape (32, elements)."""

    product: np.ndarray
    row: np.ndarray
    column: np.ndarray


def _places(product: np.ndarray, row: np.ndarray, column: np.ndarray) -> Places:
    return Places(*np.broadcast_arrays(product, row, column))


def _one_product(row: np.ndarray, column: np.ndarray) -> Places:
    return _places(np.zeros((1, 1), np.int64), row, column)


def _registers(elements: int, per_register: int) -> tuple[np.ndarray, np.ndarray]:
    """Return register and place in it of each element, shape (1, elements)."""
    i = np.arange(elements)[None, :]
    return i // per_register, i % per_register


@functools.cache
def places_of_a(rows: int, depth: int, per_register: int) -> Places:
    """Return where the elements of A belong.

    Parameters
    ----------
    rows : int
        8 or 16.
    depth : int
        Elements of k that the fragment holds: half of the instruction's for a sparse A.
    per_register : int
        Elements in a register: 1, 2, 4, 8 or 32.
    """
    register, inside = _registers(rows * depth // len(LANES), per_register)
    upper, step = (register % 2 * 8, register // 2) if rows == 16 else (0 * register, register)
    return _one_product(_G + upper, _T * per_register + inside + 4 * per_register * step)


@functools.cache
def places_of_b(depth: int, per_register: int) -> Places:
    """Return where the elements of B belong."""
    register, inside = _registers(depth * COLUMNS // len(LANES), per_register)
    return _one_product(_T * per_register + inside + 4 * per_register * register, _G)


@functools.cache
def places_of_c(rows: int) -> Places:
    """Return where the elements of C and D belong."""
    i = np.arange(rows // 4)[None, :]
    return _one_product(_G + 8 * (i // 2), 2 * _T + i % 2)


@functools.cache
def quad_places(operand: str, layout: str) -> Places:
    """Return where the elements of m8n8k4 with f16 belong.

    Parameters
    ----------
    operand : str
        "a", "b", or "c" for C and D.
    layout : str
        "row" or "col" of A and B; the type of C or D, "f16" or "f32".
    """
    i = np.arange(8 if operand == "c" else 4)[None, :]
    across = {  # (operand, layout): row, column
        ("a", "row"): (_T + _HIGH, i),
        ("a", "col"): (i + _HIGH, _T),
        ("b", "row"): (_T, i + _HIGH),
        ("b", "col"): (i, _T + _HIGH),
        ("c", "f16"): (_T + _HIGH, i),
        ("c", "f32"): ((_T & 1) + (i & 2) + _HIGH, (i & 4) + (_T & 2) + (i & 1)),
    }
    return _places(_QUAD, *across[operand, layout])
