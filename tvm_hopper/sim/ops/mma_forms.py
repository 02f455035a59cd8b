"""The forms of `mma.sync` and `mma.sp`, and their products of a warp's registers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tvm_hopper.sim.arithmetic.elements import BITS, elements_of, rounded_sum
from tvm_hopper.sim.arithmetic.exact import multiply_add_f64
from tvm_hopper.sim.layouts.fragments import (
    COLUMNS,
    QUADS,
    Places,
    places_of_a,
    places_of_b,
    places_of_c,
    quad_places,
)
from tvm_hopper.sim.ops.sparse_metadata import positions_of

_ANY = ("row", "col")
_HALVES = ("f16",)
_FP8 = ("e4m3", "e5m2")
_INT8, _INT4, _BITS = ("u8", "s8"), ("u4", "s4"), ("b1",)
_SAME = (("f32", "f32"), ("f16", "f16"))  # types of C and D
_SINGLE, _DOUBLE, _INTEGER = (("f32", "f32"),), (("f64", "f64"),), (("s32", "s32"),)


class _Line(NamedTuple):
    """A line of PTX's syntax: shapes, types of A and of B, and pairs of types of C and D."""

    shapes: tuple[str, ...]
    inputs: tuple[str, ...]
    sums: tuple[tuple[str, str], ...]
    mixed: bool = False  # whether A and B may differ


# PTX ISA 9.1, 9.7.14.5.14, without the kinds of sm_100 and later.
DENSE = (
    _Line(("m8n8k4",), _HALVES, (*_SAME, ("f16", "f32"))),
    _Line(("m16n8k8", "m16n8k16"), _HALVES, _SAME),
    _Line(("m16n8k4", "m16n8k8"), ("tf32",), _SINGLE),
    _Line(("m16n8k8", "m16n8k16"), ("bf16",), _SINGLE),
    _Line(("m16n8k16", "m16n8k32"), _FP8, _SAME, True),
    _Line(("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"), ("f64",), _DOUBLE),
    _Line(("m8n8k16", "m16n8k16", "m16n8k32"), _INT8, _INTEGER, True),
    _Line(("m8n8k32", "m16n8k32", "m16n8k64"), _INT4, _INTEGER, True),
    _Line(("m8n8k128", "m16n8k128", "m16n8k256"), _BITS, _INTEGER),
)
# 9.7.14.6.3, likewise.
SPARSE = (
    _Line(("m16n8k16", "m16n8k32"), _HALVES, _SAME),
    _Line(("m16n8k16", "m16n8k32"), ("bf16",), _SINGLE),
    _Line(("m16n8k8", "m16n8k16"), ("tf32",), _SINGLE),
    _Line(("m16n8k64",), _FP8, _SINGLE, True),
    _Line(("m16n8k32", "m16n8k64"), _INT8, _INTEGER, True),
    _Line(("m16n8k64", "m16n8k128"), _INT4, _INTEGER, True),
)
TYPES = frozenset({*BITS, "s32"})


@dataclass(frozen=True)
class FragmentProduct:
    """One form of the instruction: D = A B + C with A of `rows` x `depth` and B of `depth` x 8.

    - `depth`: k of the instruction.
    - `a_type`, `b_type`, `c_type`: PTX names of the types.
    - `saturates`: `.satfinite`.
    - `rows`: 8 or 16.
    - `d_type`: type of D; empty: that of C.
    - `layouts`: "row" or "col" for A and B, in m8n8k4 with f16: the fragments depend on it.
    - `bit_operation`: "xor" or "and", for b1.
    - `rounding`: rounding mode of f64.
    - `sparse`: whether A holds half of its elements, selected by metadata.
    """

    depth: int
    a_type: str
    b_type: str
    c_type: str
    saturates: bool = False
    rows: int = 16
    d_type: str = ""
    layouts: tuple[str, str] = ("row", "col")
    bit_operation: str = ""
    rounding: str = "rn"
    sparse: bool = False

    @property
    def quads(self) -> bool:
        """Whether the warp computes four products at once."""
        return (self.rows, self.depth, self.a_type) == (8, 4, "f16")

    @property
    def result_type(self) -> str:
        """The type of D."""
        return self.d_type or self.c_type

    @property
    def stored_depth(self) -> int:
        """Elements of k that a row of A is stored with."""
        return self.depth // 2 if self.sparse else self.depth

    @property
    def a_bytes(self) -> int:
        """Bytes of A in a lane."""
        return self._products * self.rows * self.stored_depth * BITS[self.a_type] // 256

    @property
    def b_bytes(self) -> int:
        """Bytes of B in a lane."""
        return self._products * self.depth * COLUMNS * BITS[self.b_type] // 256

    @property
    def c_bytes(self) -> int:
        """Bytes of C in a lane."""
        return self._products * self.rows * COLUMNS * BITS[self.c_type] // 256

    @property
    def _products(self) -> int:
        return QUADS if self.quads else 1

    def places(self, operand: str, kind: str) -> Places:
        """Return where the elements of an operand of some type belong; D is a "c"."""
        per_register = max(32 // BITS[kind], 1)
        if self.quads:
            layout = {"a": self.layouts[0], "b": self.layouts[1], "c": kind}[operand]
            return quad_places(operand, layout)
        if operand == "a":
            return places_of_a(self.rows, self.stored_depth, per_register)
        return places_of_b(self.depth, per_register) if operand == "b" else places_of_c(self.rows)

    def matrix(self, operand: str, kind: str, raw: np.ndarray) -> np.ndarray:
        """Return an operand as matrices, float64, shape (products, rows, columns).

        - `operand`: "a", "b" or "c". A sparse A is returned as it is stored.
        - `kind`: PTX's name of the elements' type.
        - `raw` (np.ndarray): uint8, shape (32, bytes of a lane).
        """
        shape = {
            "a": (self.rows, self.stored_depth),
            "b": (self.depth, COLUMNS),
            "c": (self.rows, COLUMNS),
        }[operand]
        full = np.empty((self._products, *shape))
        full[self.places(operand, kind)] = elements_of(raw, kind)
        return full

    def multiply(
        self, a: np.ndarray, b: np.ndarray, c: np.ndarray, metadata: np.ndarray | None = None
    ) -> np.ndarray:
        """Return D, all operands as bytes, shape (32, number of bytes in a lane).

        Products of these types but f64 are exact in float64; the sum is rounded once. For f64 it is
        a chain of fused multiply-adds, k upwards.

        - `metadata` (np.ndarray): of a sparse A: `sparse_metadata.gathered`.
        """
        total = self._sum(*self.operands(a, b, c, metadata))
        found = total[self.places("c", self.result_type)]
        return np.ascontiguousarray(found).view(np.uint8)

    def operands(
        self, a: np.ndarray, b: np.ndarray, c: np.ndarray, metadata: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return A, B and C as matrices, float64, A with the zeros that it is stored without."""
        left = self.matrix("a", self.a_type, a)
        if metadata is not None:
            dense = np.zeros((1, self.rows, self.depth))
            where = positions_of(metadata, self.a_type)
            dense[0, np.arange(self.rows)[:, None], where] = left[0]
            left = dense
        return left, self.matrix("b", self.b_type, b), self.matrix("c", self.c_type, c)

    def _sum(self, left: np.ndarray, right: np.ndarray, start: np.ndarray) -> np.ndarray:
        if self.result_type == "f64":
            total = start
            for k in range(self.depth):
                a, b = np.broadcast_arrays(left[:, :, k, None], right[:, k, None, :])
                total = multiply_add_f64(a, b, total, self.rounding)
            return total
        with np.errstate(all="ignore"):
            total = left @ right
            if self.bit_operation == "xor":  # for bits a + b - 2 a b
                total = left.sum(2, keepdims=True) + right.sum(1, keepdims=True) - 2 * total
            return rounded_sum(total + start, self.result_type, self.saturates)


def _line(
    table: Iterable[_Line], shape: str, types: tuple[str, str, str], sums: tuple[str, str]
) -> _Line | None:
    """Return the line of a table with a shape, its inputs, and its sums (C and D)."""
    a, b, _ = types
    for line in table:
        fits = {a, b} <= set(line.inputs) and (a == b or line.mixed)
        if fits and shape in line.shapes and sums in line.sums:
            return line
    return None


def find_product(
    shape: str,
    layouts: tuple[str, str],
    types: tuple[str, str, str],
    saturates: bool,
    *,
    d_type: str = "",
    bit_operation: str = "",
    rounding: str = "",
    sparse: bool = False,
) -> FragmentProduct | None:
    """Return the form of an instruction, None for one that PTX does not have.

    - `types`: of A, B and C, as PTX names them; that of D is C's if `d_type` is empty.
    """
    a, _, c = types
    sums = (c, d_type or c)
    line = _line(SPARSE if sparse else DENSE, shape, types, sums)
    quads = shape == "m8n8k4" and a == "f16"
    legal_layouts = [(x, y) for x in _ANY for y in _ANY] if quads else [("row", "col")]
    if line is None or layouts not in legal_layouts:
        return None
    has_bits = a == "b1"
    if saturates and (line.sums != _INTEGER or has_bits):
        return None
    if has_bits != (bit_operation in ("xor", "and")) or (bit_operation and not has_bits):
        return None
    if rounding and a != "f64":
        return None
    rows, depth = (int(part) for part in shape.removeprefix("m").split("n8k"))
    return FragmentProduct(
        depth,
        *types,
        saturates,
        rows=rows,
        d_type=sums[1],
        layouts=layouts,
        bit_operation=bit_operation,
        rounding=rounding or "rn",
        sparse=sparse,
    )
