"""Scalar types that kernels use, under TVM's names.

The simulator reads the types of instructions by tables of its own (`sim/tir.py`): it
checks what was made with this one.

Sources: PTX ISA 9.1, 5.2.1 (types), 9.7.15.2 and 9.7.15.5 (WGMMA: operands, accumulators, majors);
CUDA driver API, `CUtensorMapDataType`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Dtype:
    """One scalar type, and what the instructions of Hopper call it.

    Attributes
    ----------
    tensor_map_code
        `CUtensorMapDataType`; None if no tensor map can hold the type. 8-bit floats have no code
        of their own and travel as bytes.
    wgmma_operand
        Name of the type as an operand of WGMMA, empty if it is none.
    accumulators
        Types that WGMMA sums products of this one in; the widest first.
    mn_major
        Whether WGMMA reads an operand whose rows run along m or n; every other is K-major alone.
    wgmma_accumulator
        Name of the type as an accumulator of WGMMA, empty if it is none.
    asm_letter, c_type
        Constraint of inline assembly, and C type, of a 32-bit register of the type.
    """

    name: str
    num_bytes: int
    tensor_map_code: int | None = None
    wgmma_operand: str = ""
    accumulators: tuple[str, ...] = ()
    mn_major: bool = False
    wgmma_accumulator: str = ""
    asm_letter: str = ""
    c_type: str = ""

    @property
    def numpy(self) -> np.dtype:
        """The type under which numpy stores an element."""
        if self.name == "bfloat16" or self.name.startswith("float8"):
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, self.name))
        return np.dtype(self.name)


_FLOATS = ("float32", "float16")

DTYPES = {
    row.name: row
    for row in (
        Dtype("bool", 1),
        Dtype("float8_e4m3fn", 1, 0, "e4m3", _FLOATS),
        Dtype("float8_e5m2", 1, 0, "e5m2", _FLOATS),
        Dtype("int8", 1, 0, "s8", ("int32",)),
        Dtype("uint8", 1, 0, "u8", ("int32",)),
        Dtype("float16", 2, 6, "f16", _FLOATS, True, "f16"),
        Dtype("bfloat16", 2, 9, "bf16", ("float32",), True),
        Dtype("int16", 2),
        Dtype("uint16", 2, 1),
        Dtype("float32", 4, 7, "tf32", ("float32",), False, "f32", "f", "float"),
        Dtype("int32", 4, 3, wgmma_accumulator="s32", asm_letter="r", c_type="int"),
        Dtype("uint32", 4, 2, asm_letter="r", c_type="uint32_t"),
        Dtype("float64", 8, 8),
        Dtype("int64", 8, 5),
        Dtype("uint64", 8, 4),
    )
}

HALF_DTYPES = ("float16", "bfloat16")  # what `mma.sync` multiplies here, and threads
FP8_DTYPES = ("float8_e4m3fn", "float8_e5m2")
BYTE_DTYPES = ("int8", "uint8")
TF32 = "tf32"  # float32 operands of which WGMMA reads the 19 highest bits: only on request
OPERAND_DTYPES = (*HALF_DTYPES, *FP8_DTYPES, *BYTE_DTYPES, "float32")
OUTPUT_DTYPES = ("float32", *HALF_DTYPES, *FP8_DTYPES, "int32", *BYTE_DTYPES)


def exact_dtypes(dtype: str) -> tuple[str, ...]:
    """Return the types that hold every value of an operand's type, or of a sum's."""
    floats = ("float32", "float64")
    return ("int32", "int64", *floats) if "int" in str(dtype) else floats


def may_multiply(left: str, right: str) -> bool:
    """Tell whether one WGMMA takes operands of two types (PTX ISA 9.1, 9.7.15.5.2)."""
    pairs = (FP8_DTYPES, BYTE_DTYPES)
    return left == right or any(left in x and right in x for x in pairs)


def sum_dtype(dtype: str) -> str:
    """Return the widest type that WGMMA sums products of a type in."""
    return DTYPES[dtype].accumulators[0]


def dtype_bytes(dtype: str) -> int:
    """Return the size of one element in bytes; `dtype` is TVM's name of a scalar type.

    Raises
    ------
    ValueError
        The type has no whole number of bytes, or is none that Hopper's copies know.
    """
    name = str(dtype)
    if name not in DTYPES:
        raise ValueError(f"dtype {name}: found no size for it; need one of {', '.join(DTYPES)}")
    return DTYPES[name].num_bytes
