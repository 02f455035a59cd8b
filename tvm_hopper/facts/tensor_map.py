"""Rules of a tiled tensor map (CUtensorMap), which describes a tensor to TMA.

Source: CUDA driver API, `cuTensorMapEncodeTiled`, which answers CUDA_ERROR_INVALID_VALUE to any
breach and names none; hence `TensorMap.check` collects them all. Dimensions run from the innermost
outwards, as in the driver's arguments; a value known only at run time is None and not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .dtypes import DTYPES, dtype_bytes
from .swizzle import SWIZZLES

MAX_RANK = 5
MAX_BOX = 256  # elements of one dimension
MAX_DIM = 1 << 32
MAX_STRIDE_BYTES = 1 << 40
MAX_ELEMENT_STRIDE = 8
STRIDE_ALIGNMENT = 16  # bytes, of strides, of the tensor's address and of the inner box
ADDRESS_ALIGNMENT = 16
SHARED_ALIGNMENT = 128  # of where a box lands

DTYPE_CODE = {  # CUtensorMapDataType
    row.name: row.tensor_map_code for row in DTYPES.values() if row.tensor_map_code is not None
}
FILLED_WITH_NAN = ("float16", "bfloat16", "float32", "float64")  # those with a float's code
SWIZZLE_CODE = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle; not the descriptor's order
# A box begins at a multiple of 16 bytes along the innermost dimension: an H200 ends with an illegal
# instruction otherwise (driver 580.159, starts of 2 to 8 bytes). No document says so.
COORDINATE_ALIGNMENT = 16
MAX_COORDINATE = (1 << 31) - 1  # PTX ISA 9.1, 9.7.9.27.1.2: .s32
INTERLEAVE_NONE = 0  # CUtensorMapInterleave
INTERLEAVES = (0, 1, 2)  # none, 16 and 32 bytes
L2_PROMOTION_CODE = {0: 0, 64: 1, 128: 2, 256: 3}  # CUtensorMapL2promotion, bytes
# For any box. On an H200 copies of 2 GiB by boxes of 64 bytes a row took 10% longer with 0 and 64,
# 1% with 256; by boxes of 128 and of 256 bytes none of them made a difference of more than 1%.
L2_PROMOTION_BYTES = 128
OOB_CODE = {"zero": 0, "nan": 1}  # CUtensorMapFloatOOBfill


@dataclass(frozen=True)
class TensorMap:
    """One tensor map. `strides_bytes` has one entry less than `dims`: the innermost is dense."""

    dtype: str
    dims: tuple[int | None, ...]
    strides_bytes: tuple[int | None, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle_bytes: int = 0
    oob: str = "zero"

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.dims))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def loaded(self) -> tuple[int, ...]:
        """Elements that one copy brings along each dimension: of a box, one at each step.

        The innermost dimension has no steps: what is said of it is ignored.
        """
        pairs = zip(self.box[1:], self.element_strides[1:], strict=True)
        return (self.box[0], *(-(-size // step) for size, step in pairs))

    @property
    def box_bytes(self) -> int:
        """Bytes that one copy writes and completes, out-of-bounds elements included."""
        return prod(self.loaded) * dtype_bytes(self.dtype)

    def check(self) -> tuple[str, ...]:
        """Return every broken rule as "found ...; need ...", empty when the driver will agree."""
        if not 1 <= self.rank <= MAX_RANK:
            return (f"found rank {self.rank}; need 1 to {MAX_RANK}",)
        lengths = (len(self.strides_bytes) + 1, len(self.box), len(self.element_strides))
        if lengths != (self.rank,) * 3:
            return (
                f"found {len(self.strides_bytes)} strides, {len(self.box)} box sizes and "
                f"{len(self.element_strides)} element strides for rank {self.rank}; "
                f"need {self.rank - 1}, {self.rank} and {self.rank}",
            )
        if self.dtype not in DTYPE_CODE:
            return (f"found type {self.dtype}; need one of {', '.join(DTYPE_CODE)}",)
        return (
            *self._check_dims(),
            *self._check_strides(),
            *self._check_box(),
            *self._check_modes(),
        )

    def _check_dims(self) -> list[str]:
        return [
            f"found dimension {i} of {dim}; need 1 to {MAX_DIM}"
            for i, dim in enumerate(self.dims)
            if dim is not None and not 1 <= dim <= MAX_DIM
        ]

    def _check_strides(self) -> list[str]:
        found = []
        for i, stride in enumerate(self.strides_bytes, start=1):
            if stride is None:
                continue
            if stride % STRIDE_ALIGNMENT:
                found.append(
                    f"found stride {i} of {stride} bytes; "
                    f"need a multiple of {STRIDE_ALIGNMENT} bytes"
                )
            if not 0 <= stride < MAX_STRIDE_BYTES:
                found.append(f"found stride {i} of {stride} bytes; need 0 to 2**40 - 1")
        found += [
            f"found element stride {i} of {step}; need 1 to {MAX_ELEMENT_STRIDE}"
            for i, step in enumerate(self.element_strides)
            if not 1 <= step <= MAX_ELEMENT_STRIDE
        ]
        if self.element_strides[0] > 1:
            found.append(
                f"found element stride 0 of {self.element_strides[0]}, which is ignored; need 1: "
                "the innermost dimension has no steps"
            )
        return found

    def _check_box(self) -> list[str]:
        found = [
            f"found box dimension {i} of {size}; need 1 to {MAX_BOX}"
            for i, size in enumerate(self.box)
            if not 1 <= size <= MAX_BOX
        ]
        inner = self.box[0] * dtype_bytes(self.dtype)
        if inner % STRIDE_ALIGNMENT:
            found.append(f"found an inner box of {inner} bytes; need a multiple of 16 bytes")
        if self.swizzle_bytes and inner > self.swizzle_bytes:
            found.append(
                f"found an inner box of {inner} bytes under a {self.swizzle_bytes} B swizzle; "
                f"need at most {self.swizzle_bytes} bytes"
            )
        return found

    def _check_modes(self) -> list[str]:
        found = []
        if self.swizzle_bytes not in SWIZZLES:
            found.append(f"found a swizzle of {self.swizzle_bytes} bytes; need 0, 32, 64 or 128")
        if self.oob not in OOB_CODE:
            found.append(f"found out-of-bounds fill {self.oob!r}; need 'zero' or 'nan'")
        elif self.oob == "nan" and self.dtype not in FILLED_WITH_NAN:
            found.append(f"found out-of-bounds fill 'nan' for {self.dtype}; need a float type")
        return found
