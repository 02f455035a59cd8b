"""Tensors that claim to lie on a CUDA device, to meet the host function's checks without a GPU."""

from __future__ import annotations

import ctypes

import numpy as np
import tvm_ffi

CUDA = 2
CODES = {"i": 0, "u": 1, "f": 2}
_keep: list[object] = []  # what a capsule points to


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Exporter:
    def __init__(self, managed: _Managed) -> None:
        self.managed = managed

    def __dlpack__(self, **_: object) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        )
        return new(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, 0)


def tensor(
    shape: tuple[int, ...],
    dtype: str = "float16",
    address: int = 1 << 20,
    strides: tuple[int, ...] | None = None,
    device: int = CUDA,
) -> tvm_ffi.Tensor:
    """Make a tensor of nothing: the address is never read."""
    kind = np.dtype(dtype)
    extents = (ctypes.c_int64 * len(shape))(*shape)
    steps = (
        [int(np.prod(shape[i + 1 :])) for i in range(len(shape))] if strides is None else strides
    )
    distances = (ctypes.c_int64 * len(shape))(*steps)
    managed = _Managed(
        _Tensor(
            address,
            _Device(device, 0),
            len(shape),
            _Type(CODES[kind.kind], kind.itemsize * 8, 1),
            extents,
            distances,
            0,
        ),
        None,
        None,
    )
    _keep.append((managed, extents, distances))
    return tvm_ffi.from_dlpack(_Exporter(managed))
