"""An operand of WGMMA in shared memory: which bytes a descriptor stands for, and their values."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from tvm_hopper.sim.arithmetic.elements import round_tf32
from tvm_hopper.sim.layouts.matrix_descriptor import MatrixDescriptor
from tvm_hopper.sim.machine.memory import Region
from tvm_hopper.sim.races.shadow import COARSEST
from tvm_hopper.sim.tir import DTYPE_OF, numpy_dtype


@functools.lru_cache(maxsize=512)
def operand_offsets(value: int, major: str, rows: int, depth: int, itemsize: int) -> np.ndarray:
    """Return the element offsets (rows, depth) in shared memory that a descriptor stands for."""
    return MatrixDescriptor.of(value).addresses(major, rows, depth, itemsize) // itemsize


@functools.lru_cache(maxsize=512)
def operand_chunks(
    value: int, major: str, rows: int, depth: int, size: int
) -> tuple[np.ndarray, int]:
    """Return byte offsets of the pieces that an operand is made of, and their size, at most 16."""
    offsets = np.unique(operand_offsets(value, major, rows, depth, size)) * size
    chunk = COARSEST
    while chunk > size:
        starts = offsets[offsets % chunk == 0]
        if len(starts) * chunk == len(offsets) * size:
            break
        chunk //= 2
    return offsets[offsets % chunk == 0], chunk


@functools.lru_cache(maxsize=1024)
def described_by(value: int) -> MatrixDescriptor:
    """Decode a descriptor."""
    return MatrixDescriptor.of(value)


class SharedOperand(NamedTuple):
    """One operand in shared memory.

    - `key`: of `operand_offsets` and `operand_chunks`.
    - `start`: byte that their offsets count from.
    - `chunks` (numpy.ndarray): byte offsets of the pieces that it is made of, `chunk` bytes each.
    - `dtype`: of its elements.
    """

    key: tuple[int, str, int, int, int]
    start: int
    chunks: np.ndarray
    chunk: int
    dtype: np.dtype


def stored_as(kind: str, depth: int) -> tuple[np.dtype, int]:
    """Return the type that holds elements of a PTX type, and how many of it `depth` elements take.

    Eight elements of `b1` are a byte.
    """
    if kind == "b1":
        return np.dtype(np.uint8), depth // 8
    return numpy_dtype(DTYPE_OF[kind]), depth


def widened(values: np.ndarray, kind: str) -> np.ndarray:
    """Return elements as numbers whose products are exact: float32, float64 for integers.

    - `values` (np.ndarray): shape (rows, depth), as `stored_as` has them.
    - `kind`: PTX's name of their type.
    """
    if kind == "tf32":
        return round_tf32(values.astype(np.float32))
    if kind == "b1":
        return np.unpackbits(values, axis=1, bitorder="little").astype(np.float64)
    return values.astype(np.float64 if values.dtype.kind in "iu" else np.float32)


def operand_values(shared: Region, source: SharedOperand, kind: str) -> np.ndarray:
    """Gather one operand, shape (rows, elements of k)."""
    first = source.start // source.dtype.itemsize
    return widened(shared.view(source.dtype)[first:][operand_offsets(*source.key)], kind)
