"""The 128 bytes of a tensor map in memory.

The driver's layout is opaque. This layout is the simulator's, and holds the fields that
`tensormap.replace` can change (PTX ISA 9.1, 9.7.9.28). Bytes of a kernel's parameter can be copied,
changed and used; bytes that a driver encoded cannot be read here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.facts import tensor_map as rules
from tvm_hopper.sim.launch.im2col import check_im2col, check_tiled
from tvm_hopper.sim.launch.tma import TensorMapArg

NUM_BYTES = 128
ALIGNMENT = 64  # CUDA driver API, CUtensorMap
TAG = 0x504D4154  # marks bytes that are a map

# Table "Tensormap new_val validity" of tensormap.replace, by its numbers; then types of the host's.
ELEMENT_TYPES = (
    *("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32"),
    *("f32.ftz", "float64", "bfloat16", "tf32", "tf32.ftz"),
)
_TYPES = (*ELEMENT_TYPES, *(name for name in rules.DTYPE_CODE if name not in ELEMENT_TYPES))
_OBJECT = np.dtype(
    [
        *[("tag", "<u4"), ("rank", "u1"), ("elemtype", "u1")],
        *[("interleave_layout", "u1"), ("swizzle_mode", "u1"), ("global_address", "<u8")],
        *[("global_dim", "<u8", 5), ("global_stride", "<u8", 4), ("box_dim", "<u4", 5)],
        *[("element_stride", "u1", 5), ("fill_mode", "u1"), ("l2", "u1"), ("mode", "u1")],
        *[("lower", "<i2", 3), ("upper", "<i2", 3)],
    ]
)
assert _OBJECT.itemsize == NUM_BYTES


def encode(arg: TensorMapArg, address: int) -> np.ndarray:
    """Return the bytes of a host map of a tensor with element 0 at an address."""
    found = np.zeros(1, _OBJECT)
    one, rank = found[0], len(arg.dims)
    one["tag"], one["rank"], one["global_address"] = TAG, rank - 1, address
    one["elemtype"] = _TYPES.index(arg.dtype)
    one["global_dim"][:rank], one["global_stride"][: rank - 1] = arg.dims, arg.strides_bytes
    one["box_dim"][: len(arg.box)] = arg.box
    one["element_stride"][:rank] = arg.element_strides or (1,) * rank
    one["interleave_layout"], one["swizzle_mode"] = arg.interleave, arg.swizzle
    one["fill_mode"], one["l2"], one["mode"] = arg.oob, arg.l2, bool(arg.lower)
    one["lower"][: len(arg.lower)], one["upper"][: len(arg.upper)] = arg.lower, arg.upper
    return found.view(np.uint8)


def is_tiled(raw: np.ndarray) -> bool:
    """Return whether a map is of tiled mode, not im2col."""
    return not raw.view(_OBJECT)[0]["mode"]


def is_map(raw: np.ndarray) -> bool:
    """Return whether 128 bytes are a map; all zeros are one that has to be filled in."""
    return bool(raw.view(_OBJECT)[0]["tag"] == TAG) or not raw.any()


def replace(raw: np.ndarray, field: str, position: int | None, value: int) -> None:
    """Change a field, or one element of it, in the bytes of a map."""
    one = raw.view(_OBJECT)[0]
    one["tag"] = TAG
    kind = _OBJECT.fields[field][0].base  # type: ignore[index]
    value &= (1 << 8 * kind.itemsize) - 1
    if position is None:
        one[field] = value
    else:
        one[field][position] = value


def address_of(raw: np.ndarray) -> int:
    """Return the address of the tensor that a map describes."""
    return int(raw.view(_OBJECT)[0]["global_address"])


def decode(raw: np.ndarray, tensor: str, byte_offset: int) -> TensorMapArg:
    """Decode the bytes of a map, whose address lies in a known tensor."""
    one: Any = raw.view(_OBJECT)[0]
    rank = int(one["rank"]) + 1
    corners = rank - 2 if one["mode"] else 0

    def numbers(field: str, count: int) -> tuple[int, ...]:
        return tuple(int(n) for n in one[field][: max(count, 0)])

    return TensorMapArg(
        tensor,
        _TYPES[int(one["elemtype"])],
        numbers("global_dim", rank),
        numbers("global_stride", rank - 1),
        numbers("box_dim", 2 if corners else rank),
        numbers("element_stride", rank),
        int(one["interleave_layout"]),
        int(one["swizzle_mode"]),
        int(one["l2"]),
        int(one["fill_mode"]),
        byte_offset,
        numbers("lower", corners),
        numbers("upper", corners),
    )


def broken_rules(arg: TensorMapArg) -> list[str]:
    """Return the rules of the driver that a map breaks."""
    broken = check_im2col(arg) if arg.lower else check_tiled(arg, arg.box)
    if arg.interleave not in rules.INTERLEAVES:
        need = ", ".join(map(str, rules.INTERLEAVES))
        broken.append(f"found interleave {arg.interleave}; need one of {need}")
    if arg.byte_offset % rules.ADDRESS_ALIGNMENT:
        broken.append(
            f"found an address {arg.byte_offset} bytes into the tensor's memory; need a multiple "
            f"of {rules.ADDRESS_ALIGNMENT} bytes"
        )
    return broken
