"""Register layouts: fragments of `mma.sync` and WGMMA, 8x8 matrices of `ldmatrix`.

Fragments are written from PTX ISA 9.1, 9.7.14.5.1 to 9.7.14.5.13. All shapes but one follow one
rule: with e elements in a register, g = lane / 4 and t = lane % 4, element x of register r is

    of A, 16 rows   row g + 8 (r % 2), column t e + x + 4 e (r / 2)
    of A, 8 rows    row g, column t e + x + 4 e r
    of B            row t e + x + 4 e r, column g
    of C            row g + 8 (i / 2), column 2 t + i % 2, for the i-th element

m8n8k4 with f16 (9.7.14.5.1) is four products, each of eight lanes: l and l + 16 for l / 4 = number.

8x8 matrices of 16-bit elements (9.7.14.5.15 to 9.7.14.5.17): lane l holds the elements 2 (l % 4)
and 2 (l % 4) + 1 of row l / 4 in one register, of column l / 4 with `.trans`. Accumulators and A of
WGMMA: 9.7.15.5.1.1.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES

COLUMNS = 8  # n of every product
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

    - `rows`: 8 or 16.
    - `depth`: elements of k that the fragment holds: half of the instruction's for a sparse A.
    - `per_register`: elements in a register: 1, 2, 4, 8 or 32.
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

    - `operand`: "a", "b", or "c" for C and D.
    - `layout`: "row" or "col" of A and B; the type of C or D, "f16" or "f32".
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


def registers_of(matrices: np.ndarray, transposed: bool) -> np.ndarray:
    """Return the registers of 32 lanes, uint32 (n, 32).

    - `matrices` (np.ndarray): uint16, shape (n, 8, 8).
    - `transposed`: `.trans`.
    """
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    return np.ascontiguousarray(matrices).reshape(-1, 32, 2).view(np.uint32)[..., 0]


def matrices_of(registers: np.ndarray, transposed: bool) -> np.ndarray:
    """Return the matrices, uint16 (n, 8, 8), that registers hold: the inverse of `registers_of`."""
    found = np.ascontiguousarray(registers, np.uint32).view(np.uint16).reshape(-1, 8, 8)
    return found.transpose(0, 2, 1) if transposed else found


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
