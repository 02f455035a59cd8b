"""Tensors as the host passes them: a numpy view is a view, with strides, into the memory it is of.

    C = np.zeros((512, 1024), "float32")[128:256, 64:192]     a part of a larger matrix

    .                 DLTensor of a view              memory of the machine
    elem_offset 0     data = base + offset            every byte of `base`; the bytes that are no
    elem_offset 8     data = base + offset - 8 items  element of the view are outside of it
    elem_offset free  data = base, byte_offset = offset

The last line is made by `tvm.runtime.Tensor._create_view`, the first by DLPack for a view
that another framework made.  TVM checks a constant `elem_offset` against `byte_offset`: a view that
begins earlier than that is passed as it is, and the host function's own check refuses it.

Each tensor has its own copy of its base: two views of one base do not see each other's writes, so
that nothing is certified where one of them is stored to (`find_shared_memory`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.memory import POISON

CUDA = 2  # DLDeviceType
DTYPE_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataTypeCode by kind of numpy's type
SPECIAL_CODES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}


@dataclass(frozen=True)
class Pointer:
    """Address of a byte of a named tensor's memory."""

    tensor: str
    offset: int = 0

    def __and__(self, mask: int) -> int:
        """Return low address bits; the first byte of the memory is taken as aligned."""
        return self.offset & mask

    def __mod__(self, divisor: int) -> int:
        """Return the address modulo an alignment."""
        return self.offset % divisor


@dataclass(frozen=True)
class Workspace:
    """Global memory that the host function allocates for its kernels, one dimension.

    - `name`: that of the TIR buffer, with a number after it where it would be that of another
      tensor.
    - `num_bytes`: size.
    - `dtype`: type of an element; accesses of another one are legal.
    """

    name: str
    num_bytes: int
    dtype: np.dtype

    def array(self) -> np.ndarray:
        """Return memory as it is before anything is stored: every byte 0xFF."""
        items = -(-self.num_bytes // self.dtype.itemsize)
        return np.full(items * self.dtype.itemsize, POISON, np.uint8).view(self.dtype)


class _Memory:
    """Bytes at an address, for numpy; `owner` keeps them alive."""

    def __init__(self, address: int, size: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


@dataclass(frozen=True)
class TensorPlacement:
    """Where the elements of an array lie.

    - `base` (numpy.ndarray): all bytes of the memory that the array is a view of, read-only.
    - `offset`: byte of `base` where the array's first element (index 0 in every dimension) begins.
    """

    array: np.ndarray
    base: np.ndarray
    offset: int

    def among(self, data: np.ndarray) -> np.ndarray:
        """Return the array's elements inside a copy of `base`."""
        array = self.array
        return np.ndarray(array.shape, array.dtype, data, self.offset, array.strides)

    def bytes_among(self, flags: np.ndarray) -> np.ndarray:
        """Return one flag for each byte of each element, from one for each byte of `base`."""
        array = self.array
        shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
        return np.ndarray(shape, flags.dtype, flags, self.offset, strides)

    def outside(self) -> np.ndarray | None:
        """Return which bytes of `base` belong to no element; None if all belong to one."""
        if self.array.flags.c_contiguous and self.array.nbytes == self.base.size:
            return None
        flags = np.ones(self.base.size, bool)
        self.bytes_among(flags)[...] = False
        return flags if flags.any() else None


def place(array: np.ndarray) -> TensorPlacement:
    """Find the memory that an array is a view of (its own, if it is a view of nothing)."""
    if array.size == 0:
        return TensorPlacement(array, np.zeros(array.itemsize, np.uint8), 0)
    root, owner = array, array.base
    while owner is not None:
        root = owner if isinstance(owner, np.ndarray) else root
        owner = getattr(owner, "base", None)
    low, high = _span(root)
    first, last = _span(array)
    if first < low or last > high:  # a view of memory that numpy knows only in part
        root, low, high = array, first, last
    base = np.asarray(_Memory(low, high - low, root))
    return TensorPlacement(array, base, array.__array_interface__["data"][0] - low)


def find_shared_memory(
    arrays: Mapping[str, np.ndarray], stored: Iterable[str]
) -> list[tuple[str, str]]:
    """Return pairs of tensors that have memory in common: one that is stored to, and another one.

    - `arrays` (dict): the tensors of a call, as they were given.
    - `stored`: names of the tensors that some kernel stores to.
    """
    names = [name for name in stored if name in arrays]
    pairs = {
        (name, other)
        for name in names
        for other in arrays
        if other != name and (other not in names or name < other)
        if np.may_share_memory(arrays[name], arrays[other])
    }
    return sorted(pairs)


def _span(array: np.ndarray) -> tuple[int, int]:
    """Return the addresses of an array's first byte, and after its last one."""
    address = array.__array_interface__["data"][0]
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True) if n]
    low, high = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
    return address + low, address + high + array.itemsize


class HostTensor:
    """A DLTensor of the host, on the CUDA device.

    - `elem_offset`: the offset in elements that the function declares; None: it takes the tensor's.
    - raises ValueError: the array's strides are no whole elements.
    """

    def __init__(self, name: str, array: np.ndarray, elem_offset: int | None = 0) -> None:
        self.name, self.array = name, array
        size = array.itemsize
        if any(step % size for step in array.strides):
            raise ValueError(
                f"inputs: found {name} with strides of {array.strides} bytes; need whole elements "
                f"of {size} bytes"
            )
        offset = place(array).offset
        declared = offset if elem_offset is None else elem_offset * size
        self.byte_offset = declared if 0 <= declared <= offset else offset
        self.data = Pointer(name, offset - self.byte_offset)
        self.strides = [step // size for step in array.strides]
        if array.size == 0:  # numpy's are arbitrary then; these are those of TVM's own tensors
            self.strides = [math.prod(array.shape[i + 1 :]) for i in range(array.ndim)]

    def get(self, field: int) -> Any:
        """Return one field by TVM's number."""
        dtype = self.array.dtype
        code = SPECIAL_CODES.get(dtype.name, DTYPE_CODES.get(dtype.kind, 2))
        fields = {
            0: self,
            1: self.data,
            2: list(self.array.shape),
            3: self.strides,
            4: self.array.ndim,
            5: code,
            6: dtype.itemsize * 8,
            7: 1,
            8: self.byte_offset,
            9: 0,
            10: CUDA,
        }
        return fields[field]
