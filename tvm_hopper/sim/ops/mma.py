"""mma.sync: a warp multiplies fragments in registers; and TVM's older calls around it.

The older calls (`ptx_legacy.mma`, `ptx_legacy.ldmatrix`, `mma_fill_legacy`, `mma_store_legacy`)
take registers as a pointer and a number of elements; `ptx.mma` names each register.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.arithmetic.elements import BITS
from tvm_hopper.sim.layouts.fragments import matrices_of, registers_of
from tvm_hopper.sim.machine.lanes import LANES, as_lanes, is_lanes
from tvm_hopper.sim.ops.mma_forms import TYPES, FragmentProduct, find_product
from tvm_hopper.sim.ops.sparse_metadata import gathered, holders, meaningless
from tvm_hopper.sim.options import no_values

# How TVM's older calls name types, where they do not use PTX's names.
_OLDER_NAMES = {
    "fp16": "f16",
    "fp32": "f32",
    "fp64": "f64",
    "int1": "b1",
    "int4": "s4",
    "uint4": "u4",
    "int8": "s8",
    "uint8": "u8",
    "int32": "s32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}
_REGISTERS = {
    "f32": np.float32,
    "f64": np.float64,
}  # types of D in registers; others are 32-bit words
_NOTHING = tuple(np.zeros(32, np.uint32) for _ in range(8))  # in place of a result, for any form


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
            self.report(
                "OOB_ACCESS",
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
        types = (_named(a_type), _named(b_type), _named(c_type))
        layouts, operation = (a_layout, b_layout), operator or ""
        product = find_product(shape, layouts, types, bool(saturates), bit_operation=operation)
        if product is None:
            parts = ["mma.sync", shape, f"{a_layout}.{b_layout}", f"{a_type}.{b_type}.{c_type}"]
            form = " ".join([*parts, *filter(None, (operation, "satfinite" * bool(saturates)))])
            if TYPES.issuperset(types):
                self._no_such_form(site, form)
            else:
                self.machine.incomplete(form, site)
            return
        self._require_full(site, mask, "mma.sync", exists=True)
        left = self._take(site, a, a_offset, product.a_bytes)
        right = self._take(site, b, b_offset, product.b_bytes)
        start = self._take(site, c, c_offset, product.c_bytes)
        if left is not None and right is not None and start is not None:
            self._put(site, c, c_offset, product.multiply(left, right, start))

    def op_mma(self, site: int, mask: Any, mods: Any, a: Any, b: Any, c: Any) -> Any:
        """Multiply registers that the instruction names one by one; returns those of D."""
        self._require_full(site, mask, "mma.sync", exists=True)
        product = self._form(site, mods)
        return _NOTHING if product is None else self._product(product, a, b, c)

    def op_mma_sp(
        self, site: int, mask: Any, mods: Any, a: Any, b: Any, c: Any, e: Any, f: Any
    ) -> Any:
        """Multiply a sparse A: `e` is its metadata, `f` tells which lanes hold it."""
        self._require_full(site, mask, "mma.sp", exists=True)
        product = self._form(site, mods)
        if product is None:
            return _NOTHING
        most = 4 // holders(product.a_type, product.depth) - 1
        if not 0 <= int(f) <= most:
            text = f"sparsity selector {int(f)}: need 0" + f" to {most}" * (most > 0)
            self.report("ILLEGAL_OPERAND", site, text)
            return _NOTHING
        no_values(self.machine, "metadata of mma.sp may have no meaning")
        words = np.broadcast_to(_word(e, 32), (32,))
        fields = gathered(words, product.a_type, product.depth, int(f))
        wrong = meaningless(fields, product.a_type, "ordered_metadata" in mods["spvariant"])
        if len(wrong):
            found = ", ".join(f"0b{value:04b}" for value in wrong)
            form = (
                f"metadata {found} of .{product.a_type}: mma.{mods['spvariant']} has no meaning for"
            )
            these = "it" if len(wrong) == 1 else "them"
            text = f"{form} {these}; give its tensor in inputs"
            self.report("ILLEGAL_OPERAND", site, text)
        return self._product(product, a, b, c, fields)

    def _form(self, site: int, mods: Any) -> FragmentProduct | None:
        """Return the form of an instruction; report one that PTX does not have."""
        layouts = (mods["alayout"], mods["blayout"])
        types = (mods["atype"], mods["btype"], mods["ctype"])
        product = find_product(
            mods["shape"],
            layouts,
            types,
            bool(mods.get("satfinite")),
            d_type=mods["dtype"],
            bit_operation=mods.get("bitop", ""),
            rounding=mods.get("rnd", ""),
            sparse="spvariant" in mods,
        )
        if product is None:
            form = f"mma {mods['shape']} {'.'.join(layouts)} {'.'.join((mods['dtype'], *types))}"
            self._no_such_form(site, form)
        return product

    def _no_such_form(self, site: int, form: str) -> None:
        text = f"{form}: need a form of the instruction that PTX has"
        self.report("ILLEGAL_OPERAND", site, text)

    def _product(self, product: FragmentProduct, a: Any, b: Any, c: Any, fields: Any = None) -> Any:
        """Return the registers of D."""
        if not self.machine.values:
            return _NOTHING
        types = (product.a_type, product.b_type, product.c_type)
        left, right, start = (
            _bytes(x, max(BITS[kind], 32)) for x, kind in zip((a, b, c), types, strict=True)
        )
        found = product.multiply(left, right, start, fields)
        return tuple(found.view(_REGISTERS.get(product.result_type, np.uint32)).T)

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
            self.store(site, mask, address, place, values[:, n], (local.dtype, 1, 1))


def _named(older: str) -> str:
    """Return PTX's name of a type of TVM's older calls."""
    name = older.removeprefix(".")
    return _OLDER_NAMES.get(name, name)


def _bytes(registers: Any, bits: int = 32) -> np.ndarray:
    """Return registers of all lanes as bytes, shape (32, bytes of all of them)."""
    parts = registers if isinstance(registers, tuple) else (registers,)
    words = [_word(part, bits) for part in parts]
    return np.ascontiguousarray(np.stack(words, axis=1)).view(np.uint8)


def _word(value: Any, bits: int) -> np.ndarray:
    lanes = np.asarray(value) if is_lanes(value) else as_lanes(value)
    if bits == 64:
        return np.broadcast_to(lanes, (32,)).astype(np.float64)
    if lanes.dtype.itemsize == 4:
        return np.ascontiguousarray(lanes).view(np.uint32)
    return lanes.astype(np.uint32)


class MatrixOps:
    """Matrix loads and stores of one warp."""

    def _rows(self, site: int, p: Any, number: int) -> tuple[Any, np.ndarray] | None:
        """Return region and byte offsets of the 8*number row addresses."""
        addresses = as_lanes(p).astype(np.int64)[: 8 * number]
        region, first = self.region_at(addresses[0])
        offsets = addresses - (addresses[0] - first)
        if region is None or not region.shared:
            self.report("OOB_ACCESS", site, "matrix row outside of shared memory")
            return None
        if not self.inside(site, region, offsets, 16, "matrix rows in"):
            return None
        if (offsets % 16).any():
            self.report("MISALIGNED", site, "matrix row address is no multiple of 16")
            return None
        if region.live[int(offsets.min()) : int(offsets.max()) + 16].any():
            self._live_object(site, region, offsets, 16)
        return region, offsets

    def op_stmatrix(self, site: int, mask: Any, mods: Any, p: Any, r: Any) -> None:
        """Store 1, 2 or 4 matrices; lane l of matrix m gives the address of row l of matrix m."""
        self._require_full(site, mask, "stmatrix", exists=True)
        values = r if isinstance(r, tuple) else (r,)
        rows = self._rows(site, p, len(values))
        if rows is None:
            return
        region, offsets = rows
        self.machine.progress += 1
        if region.shadow is not None:
            self.check(region, offsets, 16, self.access(site, True), together=True)
        if not self.machine.values:
            return
        words = np.stack([np.broadcast_to(as_lanes(value), (32,)) for value in values])
        cells = region.view(np.dtype(np.uint16))
        places = offsets.reshape(-1, 8, 1) // 2 + np.arange(8)
        cells[places] = matrices_of(words.astype(np.uint32), bool(mods.get("trans")))

    def op_ldmatrix(self, site: int, mask: Any, mods: Any, p: Any) -> Any:
        """Load 1, 2 or 4 matrices; each lane gets two neighbours of a row per matrix."""
        self._require_full(site, mask, "ldmatrix", exists=True)
        number = int(mods["num"][1:])
        results = np.zeros((number, 32), np.uint32)
        rows = self._rows(site, p, number)
        if rows is not None:
            region, offsets = rows
            if region.shadow is not None:
                self.check(region, offsets, 16, self.access(site, False), together=True)
            if self.machine.values:
                cells = region.view(np.dtype(np.uint16))
                matrices = cells[offsets.reshape(-1, 8, 1) // 2 + np.arange(8)]
                results = registers_of(matrices, bool(mods.get("trans")))
        return results[0] if number == 1 else tuple(results)
