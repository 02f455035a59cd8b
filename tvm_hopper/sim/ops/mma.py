"""mma.sync: a warp multiplies fragments in registers; and TVM's older calls around it.

The older calls (`ptx_legacy.mma`, `ptx_legacy.ldmatrix`, `mma_fill_legacy`, `mma_store_legacy`)
take registers as a pointer and a number of elements; `ptx.mma` names each register.

Fragments as PTX ISA 9.1, 9.7.14.5.8 to 9.7.14.5.10, lays them out: with e elements in a 32-bit
register, g = lane / 4 and t = lane % 4, element x of register r is

    of A    row g + 8 (r % 2), column t e + x + 4 e (r / 2)
    of B    row t e + x + 4 e r, column g
    of C    row g + 8 (i / 2), column 2 t + i % 2, for the i-th element of four
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.sim.machine.lanes import LANES, as_lanes, is_lanes
from tvm_hopper.sim.ops.ptx_types import DTYPE_OF
from tvm_hopper.sim.tir import numpy_dtype

# How TVM's older calls name types, where they do not use PTX's names.
_OLDER_NAMES = {
    "fp16": "f16",
    "fp32": "f32",
    "int8": "s8",
    "uint8": "u8",
    "int32": "s32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
}
_INPUTS = {"f32": ("f16", "bf16", "e4m3", "e5m2"), "f16": ("f16",), "s32": ("s8", "u8")}
_ROWS, _COLUMNS = 16, 8  # of every product here
_G, _T = LANES // 4, LANES % 4


@dataclass(frozen=True)
class FragmentProduct:
    """One form of the instruction: D = A B + C with A of 16 x `depth` and B of `depth` x 8."""

    depth: int
    a_type: str
    b_type: str
    c_type: str
    saturates: bool = False

    @property
    def per_register(self) -> int:
        """Elements of A or B in a 32-bit register."""
        return 4 // numpy_dtype(DTYPE_OF[self.a_type]).itemsize

    @property
    def a_registers(self) -> int:
        """32-bit registers of A in a lane; B has half as many."""
        return self.depth // (2 * self.per_register)

    @property
    def c_bytes(self) -> int:
        """Bytes of C, and of D, in a lane."""
        return 4 * numpy_dtype(DTYPE_OF[self.c_type]).itemsize

    def multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Return D, all operands as bytes, shape (32, number of bytes in a lane).

        Products of these types are exact in float64; the sum is rounded once.
        """
        left = np.empty((_ROWS, self.depth))
        right = np.empty((self.depth, _COLUMNS))
        e = self.per_register
        a_values, b_values = _values(a, self.a_type), _values(b, self.b_type)
        for n in range(self.a_registers * e):
            r, x = divmod(n, e)
            left[_G + 8 * (r % 2), _T * e + x + 4 * e * (r // 2)] = a_values[:, n]
        for n in range(self.a_registers // 2 * e):
            r, x = divmod(n, e)
            right[_T * e + x + 4 * e * r, _G] = b_values[:, n]
        with np.errstate(all="ignore"):
            product = left @ right
        places = [(_G + 8 * (i // 2), 2 * _T + i % 2) for i in range(4)]
        own = np.stack([product[place] for place in places], axis=1)
        with np.errstate(all="ignore"):
            total = own + _values(c, self.c_type)
            if self.c_type == "s32" and self.saturates:
                total = np.clip(total, -(2**31), 2**31 - 1)
            kind = numpy_dtype(DTYPE_OF[self.c_type])
            if kind.kind == "i":  # wraps around: sums stay below 2**53
                return np.ascontiguousarray(total.astype(np.int64).astype(kind)).view(np.uint8)
            return np.ascontiguousarray(total.astype(kind)).view(np.uint8)


def find_product(
    shape: str, layouts: tuple[str, str], types: tuple[str, str, str], saturates: bool
) -> FragmentProduct | None:
    """Return the form of an instruction, None for one that is not modelled.

    `types` are those of A, B and C.
    """
    a, b, c = (_OLDER_NAMES.get(x, x) for x in types)
    inputs = _INPUTS.get(c, ())
    if not shape.startswith("m16n8k") or layouts != ("row", "col") or {a, b} - set(inputs):
        return None
    product = FragmentProduct(int(shape.removeprefix("m16n8k")), a, b, c, saturates)
    if saturates and c != "s32":  # .satfinite is of the integer forms
        return None
    same_width = c == "s32" or a == b or {a, b} <= {"e4m3", "e5m2"}
    return product if same_width and product.a_registers in (2, 4) else None


def _values(raw: np.ndarray, dtype: str) -> np.ndarray:
    values = np.ascontiguousarray(raw).view(numpy_dtype(DTYPE_OF[dtype]))
    with np.errstate(all="ignore"):
        return values.astype(np.float64)


class MmaOps:
    """Products of one warp, and the calls that fill and empty their registers."""

    def _take(self, site: int, local: np.ndarray, offset: Any, size: int) -> np.ndarray | None:
        """Return bytes of registers, from the element `offset` on; None beyond their end."""
        places = self._places(site, local, offset, size)
        return None if places is None else local.view(np.uint8)[LANES[:, None], places]

    def _put(self, site: int, local: np.ndarray, offset: Any, raw: np.ndarray) -> None:
        places = self._places(site, local, offset, raw.shape[1])
        if places is not None:
            local.view(np.uint8)[LANES[:, None], places] = raw

    def _places(self, site: int, local: np.ndarray, offset: Any, size: int) -> np.ndarray | None:
        first = as_lanes(offset).astype(np.int64) * local.itemsize
        if first.min() < 0 or first.max() + size > local.shape[1] * local.itemsize:
            self.machine.at(
                "OOB_ACCESS",
                self,
                site,
                f"registers {int(first.min())} to {int(first.max()) + size} of "
                f"{local.shape[1] * local.itemsize} bytes",
            )
            return None
        return first[:, None] + np.arange(size)

    def op_ptx_legacy_mma(
        self,
        site: int,
        mask: Any,
        shape: str,
        a_layout: str,
        b_layout: str,
        a_type: str,
        b_type: str,
        c_type: str,
        a: np.ndarray,
        a_offset: Any,
        b: np.ndarray,
        b_offset: Any,
        c: np.ndarray,
        c_offset: Any,
        saturates: Any,
        operator: str | None = None,
    ) -> None:
        """Multiply registers: C += A B."""
        types = (a_type, b_type, c_type)
        product = find_product(shape, (a_layout, b_layout), types, bool(saturates))
        if product is None or operator is not None:
            what = f"mma.sync {shape} {a_layout}.{b_layout} {'.'.join(types)} {operator or ''}"
            self.machine.incomplete(what.rstrip(), site)
            return
        self._require_full(site, mask, "mma.sync", exists=True)
        left = self._take(site, a, a_offset, 4 * product.a_registers)
        right = self._take(site, b, b_offset, 2 * product.a_registers)
        start = self._take(site, c, c_offset, product.c_bytes)
        if left is not None and right is not None and start is not None:
            self._put(site, c, c_offset, product.multiply(left, right, start))

    def op_mma(self, site: int, mask: Any, mods: Any, a: Any, b: Any, c: Any) -> Any:
        """Multiply registers that the instruction names one by one; returns those of D."""
        layouts = (mods.get("alayout", ""), mods.get("blayout", ""))
        types = (mods["atype"], mods["btype"], mods["ctype"])
        product = find_product(mods["shape"], layouts, types, bool(mods.get("satfinite")))
        if product is None or mods.get("bitop") or mods["dtype"] != mods["ctype"]:
            self.machine.incomplete(f"mma.sync {mods['shape']} {'.'.join(types)}", site)
            return tuple(np.zeros(32, np.uint32) for _ in c)
        self._require_full(site, mask, "mma.sync", exists=True)
        raw = product.multiply(_bytes(a), _bytes(b), _bytes(c))
        kind = np.float32 if product.c_type == "f32" else np.uint32
        return tuple(np.ascontiguousarray(raw).view(kind).T)

    op_mma_f16acc = op_mma
    op_mma_int = op_mma

    def op_ptx_legacy_ldmatrix(
        self,
        site: int,
        mask: Any,
        trans: Any,
        number: int,
        kind: str,
        local: np.ndarray,
        local_offset: Any,
        row: Any,
        row_offset: Any,
    ) -> None:
        """Load matrices; offsets count elements of the registers' type."""
        if kind != ".b16" or (trans and local.itemsize == 1):
            # TVM prints a loop of plain loads for bytes that are to be transposed
            self.machine.incomplete(f"ldmatrix {kind} of {local.dtype}, trans={trans}", site)
            return
        mods = {"num": f"x{int(number)}", "trans": "trans" if trans else ""}
        address = as_lanes(row).astype(np.int64) + as_lanes(row_offset) * local.itemsize
        values = self.op_ldmatrix(site, mask, mods, address)
        words = values if isinstance(values, tuple) else (values,)
        self._put(site, local, local_offset, _bytes(words))

    def op_mma_fill_legacy(
        self, site: int, mask: Any, count: int, local: np.ndarray, offset: Any
    ) -> None:
        """Set registers to zero."""
        raw = np.zeros((32, int(count) * local.itemsize), np.uint8)
        places = self._places(site, local, offset, raw.shape[1])
        if places is not None:
            lanes = LANES if mask is None else LANES[mask]
            local.view(np.uint8)[lanes[:, None], places[lanes]] = 0

    def op_mma_store_legacy(
        self,
        site: int,
        mask: Any,
        rows: int,
        columns: int,
        address: Any,
        local: np.ndarray,
        offset: Any,
        stride: Any,
    ) -> None:
        """Store a 16 x 16 result: two of C side by side, element by element.

        The lane is threadIdx.x, as TVM prints the call.
        """
        if (int(rows), int(columns)) != (16, 16):
            self.machine.incomplete(f"mma_store of {int(rows)} x {int(columns)}", site)
            return
        raw = self._take(site, local, offset, 8 * local.itemsize)
        if raw is None:
            return
        values = np.ascontiguousarray(raw).view(local.dtype)
        lane = as_lanes(self.threads["threadIdx.x"])
        for n in range(8):
            row = lane // 4 + 8 * (n % 4 // 2)
            place = row * stride + 8 * (n // 4) + lane % 4 * 2 + n % 2
            self.store(site, mask, address, place, values[:, n], local.dtype, 1, 1)


def _bytes(registers: Any) -> np.ndarray:
    """Return 32-bit registers of all lanes as bytes, shape (32, 4 times their number)."""
    parts = registers if isinstance(registers, tuple) else (registers,)
    words = [_word(part) for part in parts]
    return np.ascontiguousarray(np.stack(words, axis=1)).view(np.uint8)


def _word(value: Any) -> np.ndarray:
    lanes = np.asarray(value) if is_lanes(value) else as_lanes(value)
    if lanes.dtype.itemsize == 4:
        return np.ascontiguousarray(lanes).view(np.uint32)
    return lanes.astype(np.uint32)
