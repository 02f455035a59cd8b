"""WGMMA: instruction shapes, accumulator layout, shared-memory descriptors.

Sources: PTX ISA 9.1, 9.7.15.2 (shapes), 9.7.15.5.1.1 (register fragments), 9.7.15.5.1.2 (shared
memory layout, matrix descriptor); the canonical layouts as CUTLASS states them in
`cute/atom/mma_traits_sm90_gmma.hpp`. For float16, every major and swizzle was compared with an H200
(`tests/gpu/test_facts_on_hardware.py`); other types follow from their size alone.

A shared operand tile is stored as *panels*, `[panels, panel_rows, span]`: each row is `span_bytes`
long, each panel one TMA box. "mn" is the operand's outer dimension, m for A and n for B.

    K-major   panels run over k,   a panel's rows are mn
    MN-major  panels run over mn,  a panel's rows are k
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import BYTE_DTYPES, DTYPES, dtype_bytes, may_multiply
from .swizzle import alignment, check_swizzle, span_bytes, swizzle_offset

INSTRUCTION_M = 64
K_BYTES = 32  # every instruction takes 32 bytes of k from each operand
MAX_N = 256
MOST_INTEGER_N = 224
MAJORS = ("k", "mn")

_OPERANDS = [row.name for row in DTYPES.values() if row.wgmma_operand]
MN_MAJOR_DTYPES = tuple(row.name for row in DTYPES.values() if row.mn_major)

SWIZZLE_CODE = {0: 0, 128: 1, 64: 2, 32: 3}  # bits 62-63 of a descriptor
_SWIZZLE_BYTES = {code: swizzle for swizzle, code in SWIZZLE_CODE.items()}


def _check_dtype(dtype: str) -> str:
    if str(dtype) not in _OPERANDS:
        need = ", ".join(_OPERANDS)
        raise ValueError(f"WGMMA operand: found type {dtype}; need one of {need}")
    return str(dtype)


def instruction_k(dtype: str) -> int:
    """Return the k of one instruction in elements: 8 (tf32), 16 (16 bit) or 32 (8 bit)."""
    return K_BYTES // dtype_bytes(_check_dtype(dtype))


def legal_n(dtype: str) -> tuple[int, ...]:
    """Return every n of one instruction, ascending: multiples of 8 to 256, for integers fewer."""
    if _check_dtype(dtype) in BYTE_DTYPES:
        return (8, 16, 24, *range(32, MAX_N + 1, 16))
    return tuple(range(8, MAX_N + 1, 8))


def emitted_n(dtype: str) -> tuple[int, ...]:
    """Return every n that can be emitted: TVM's table ends at 224 for integers (0.27.0.post1)."""
    most = MOST_INTEGER_N if _check_dtype(dtype) in BYTE_DTYPES else MAX_N
    return tuple(n for n in legal_n(dtype) if n <= most)


def instruction_name(
    n: int, dtype: str, accumulator: str = "float32", other: str | None = None
) -> str:
    """Return the PTX instruction that multiplies 64 x k of `dtype` by k x n of `other` or `dtype`.

    Raises
    ------
    ValueError
        The hardware has no such shape or pair of types.
    """
    if n not in legal_n(dtype):
        raise ValueError(f"WGMMA n for {dtype}: found {n}; need one of {legal_n(dtype)}")
    row = DTYPES[dtype]
    if accumulator not in row.accumulators:
        need = " or ".join(row.accumulators)
        raise ValueError(f"WGMMA accumulator for {dtype}: found {accumulator}; need {need}")
    other = dtype if other is None else other
    if not may_multiply(dtype, other):
        need = "one type, two of float8, or two of 8-bit integers"
        raise ValueError(f"WGMMA operands: found {dtype} and {other}; need {need}")
    shape = f"m{INSTRUCTION_M}n{n}k{instruction_k(dtype)}"
    operands = row.wgmma_operand, DTYPES[other].wgmma_operand
    types = (DTYPES[accumulator].wgmma_accumulator, *operands)
    return f"wgmma.mma_async.sync.aligned.{shape}.{'.'.join(types)}"


# -- the accumulator: register i of a thread holds element (row, col) of the 64 x n tile.
# Only + * // %, so that ints, arrays and TIR expressions all do.


def accumulator_row(i: Any, thread: Any) -> Any:
    """Return the row in [0, 64) of register `i` of `thread` (0 to 127 in its warp group)."""
    return thread // 32 * 16 + i // 2 % 2 * 8 + thread % 32 // 4


def accumulator_col(i: Any, thread: Any) -> Any:
    """Return the column in [0, n) of register `i` of `thread`; 2j and 2j+1 are neighbours."""
    return i // 4 * 8 + thread % 4 * 2 + i % 2


def accumulator_registers(n: int) -> int:
    """Return how many 32-bit accumulators each of 128 threads holds of a 64 x n tile."""
    return INSTRUCTION_M * n // 128


# -- A in registers (PTX ISA 9.1, 9.7.15.5.1.1): word i of a thread holds `per_word` elements, which
# are neighbours along k, of the 64 rows and the k of one instruction.

ROWS_OF_THREAD = 2  # of the 64 rows of an instruction, eight apart; so of an accumulator
OPERAND_WORDS = 4  # 32-bit registers of a thread for one instruction, whichever type


def operand_row(i: Any, thread: Any) -> Any:
    """Return the row in [0, 64) of word `i` of `thread` (0 to 127 in its warp group)."""
    return thread // 32 * 16 + i % 2 * 8 + thread % 32 // 4


def operand_col(i: Any, thread: Any, per_word: int) -> Any:
    """Return which k the first of the elements in word `i` of `thread` has."""
    return i // 2 * (4 * per_word) + thread % 4 * per_word


@dataclass(frozen=True)
class Descriptor:
    """The 64-bit description of an operand in shared memory; all lengths in bytes.

    Bits 0-13 start address, 16-29 leading byte offset, 32-45 stride byte offset (each without its
    four lowest bits), 49-51 base offset, 62-63 swizzle.
    """

    start: int
    leading_bytes: int
    stride_bytes: int
    base_offset: int = 0
    swizzle_bytes: int = 128

    def __post_init__(self) -> None:
        check_swizzle(self.swizzle_bytes)
        for name in ("start", "leading_bytes", "stride_bytes"):
            value = getattr(self, name)
            if value % 16 or not 0 <= value < 1 << 18:
                raise ValueError(
                    f"descriptor {name}: found {value}; need a multiple of 16 below 262144"
                )
        if not 0 <= self.base_offset < 8:
            raise ValueError(f"descriptor base_offset: found {self.base_offset}; need 0 to 7")

    def encode(self) -> int:
        """Return the 64-bit value."""
        return (
            self.start >> 4
            | (self.leading_bytes >> 4) << 16
            | (self.stride_bytes >> 4) << 32
            | self.base_offset << 49
            | SWIZZLE_CODE[self.swizzle_bytes] << 62
        )

    @staticmethod
    def decode(value: int) -> Descriptor:
        """Return the description that a 64-bit value holds; reserved bits are not looked at."""
        return Descriptor(
            start=(value & 0x3FFF) << 4,
            leading_bytes=(value >> 16 & 0x3FFF) << 4,
            stride_bytes=(value >> 32 & 0x3FFF) << 4,
            base_offset=value >> 49 & 0x7,
            swizzle_bytes=_SWIZZLE_BYTES[value >> 62 & 0x3],
        )


def operand_addresses(descriptor: Descriptor, major: str, rows: int, dtype: str) -> np.ndarray:
    """Return the shared-memory byte address of every element that one instruction reads.

    In 16-byte units, W being the span and "(a,b):(x,y)" an index pair with its strides:

        K-major   none ((8,g),2):((1,SBO),LBO)            swizzled ((8,g),2):((W,SBO),1)
        MN-major  none (g,(8,2)):(SBO,(1,LBO))            swizzled ((W,g),(8,2)):((1,LBO),(W,SBO))

    The swizzle then acts on the address itself.

    Returns
    -------
    np.ndarray
        int64, shape (rows, instruction_k(dtype)).
    """
    _check_operand(major, dtype)
    if descriptor.base_offset:
        raise ValueError(f"descriptor base_offset: found {descriptor.base_offset}; need 0 here")
    size, width = dtype_bytes(dtype), span_bytes(descriptor.swizzle_bytes)
    leading, stride = descriptor.leading_bytes, descriptor.stride_bytes
    row = np.arange(rows, dtype=np.int64)[:, None]
    k = np.arange(instruction_k(dtype), dtype=np.int64)[None, :]
    if major == "k":
        chunk, inside = k * size // 16, k * size % 16
        plain = row % 8 * width + row // 8 * stride + inside
        plain = plain + chunk * (16 if descriptor.swizzle_bytes else leading)
    else:
        panel, inside = row * size // width, row * size % width
        between_panels, between_k = (
            (leading, stride) if descriptor.swizzle_bytes else (stride, leading)
        )
        plain = inside + panel * between_panels + k % 8 * width + k // 8 * between_k
    return swizzle_offset(descriptor.start + plain, descriptor.swizzle_bytes)


def _check_operand(major: str, dtype: str) -> None:
    if major not in MAJORS:
        raise ValueError(f"operand major: found {major!r}; need 'k' or 'mn'")
    if major == "mn" and _check_dtype(dtype) not in MN_MAJOR_DTYPES:
        need = " or ".join(MN_MAJOR_DTYPES)
        raise ValueError(f"MN-major operand: found type {dtype}; need {need}, or a K-major operand")


@dataclass(frozen=True)
class OperandLayout:
    """Layout of a `rows x k` operand tile in shared memory, and its descriptor.

    Build it with `operand_layout`; byte counts, offsets from the start of the tile.
    """

    major: str
    rows: int
    k: int
    dtype: str
    swizzle_bytes: int
    panels: int
    panel_rows: int
    span_elements: int
    leading_bytes: int
    stride_bytes: int
    k_step_bytes: int  # from one instruction's k to the next, inside a panel
    k_steps_per_panel: int  # K-major; in an MN-major tile all steps lie in every panel

    @property
    def shape(self) -> tuple[int, int, int]:
        """The tile as an array: (panels, panel_rows, span_elements)."""
        return self.panels, self.panel_rows, self.span_elements

    @property
    def panel_bytes(self) -> int:
        """Bytes of one panel, that is of one TMA box."""
        return self.panel_rows * span_bytes(self.swizzle_bytes)

    @property
    def tile_bytes(self) -> int:
        """Bytes of the whole tile."""
        return self.panels * self.panel_bytes

    @property
    def alignment(self) -> int:
        """Alignment of the tile's start, so that descriptors have base offset 0."""
        return alignment(self.swizzle_bytes)

    def k_offset(self, step: Any) -> Any:
        """Return where the `step`-th instruction along k starts; int, array or TIR expression."""
        inside = step % self.k_steps_per_panel * self.k_step_bytes
        return step // self.k_steps_per_panel * self._panel_step + inside

    @property
    def _panel_step(self) -> int:
        if self.major == "mn":  # never reached by k_offset: one "panel" holds every step
            return 0
        return self.panel_bytes if self.swizzle_bytes else self.k_step_bytes

    @property
    def mn_granularity(self) -> int:
        """Rows (m or n) at whose multiples an instruction may start."""
        return 8 if self.major == "k" else self.span_elements

    def mn_offset(self, row: Any) -> Any:
        """Return where row `row` starts, a multiple of `mn_granularity`."""
        if isinstance(row, int) and row % self.mn_granularity:
            raise ValueError(
                f"{self.major.upper()}-major operand with a {self.swizzle_bytes} B swizzle: "
                f"found an instruction at row {row}; need a multiple of {self.mn_granularity}"
            )
        if self.major == "k":
            return row * span_bytes(self.swizzle_bytes)
        return row // self.span_elements * self.panel_bytes

    def element_offset(self, row: Any, k: Any) -> Any:
        """Return the byte offset at which TMA stores element (row, k) of the tile."""
        outer, inner, line = (k, k, row) if self.major == "k" else (row, row, k)
        plain = (
            outer // self.span_elements * self.panel_bytes
            + line * span_bytes(self.swizzle_bytes)
            + inner % self.span_elements * dtype_bytes(self.dtype)
        )
        return swizzle_offset(plain, self.swizzle_bytes)

    def descriptor(self, start: int, row: int = 0, step: int = 0) -> Descriptor:
        """Return the descriptor of the instruction at (row, step) of a tile at address `start`."""
        address = start + self.mn_offset(row) + self.k_offset(step)
        return Descriptor(
            address, self.leading_bytes, self.stride_bytes, swizzle_bytes=self.swizzle_bytes
        )


def operand_layout(
    major: str, rows: int, k: int, dtype: str, swizzle_bytes: int = 128
) -> OperandLayout:
    """Lay out a `rows x k` tile (rows = m or n) as panels that TMA writes and WGMMA reads.

    Raises
    ------
    ValueError
        The tile is no whole number of panels, instructions or eight-row atoms.
    """
    _check_operand(major, dtype)
    check_swizzle(swizzle_bytes)
    width, step = span_bytes(swizzle_bytes), instruction_k(dtype)
    span = width // dtype_bytes(dtype)
    where = f"{major.upper()}-major {rows}x{k} {dtype} tile with a {swizzle_bytes} B swizzle"
    if rows <= 0 or k <= 0 or rows % 8 or k % step:
        raise ValueError(f"{where}: found {rows}x{k}; need multiples of 8 and {step}")
    over = k if major == "k" else rows
    if over % span:
        name = "k" if major == "k" else "rows"
        raise ValueError(f"{where}: found {name} = {over}; need a multiple of {span} (one row)")
    panel_rows = rows if major == "k" else k
    panel_bytes = panel_rows * width
    if major == "k":
        steps = max(width // K_BYTES, 1)
        step_bytes = K_BYTES if swizzle_bytes else 2 * panel_bytes
        leading = 16 if swizzle_bytes else panel_bytes  # unused when swizzled: CUTLASS encodes 1
        stride = 8 * width
    else:
        steps, step_bytes = k // step, step * width
        leading, stride = (panel_bytes, 8 * width) if swizzle_bytes else (8 * width, panel_bytes)
    return OperandLayout(
        major=major,
        rows=rows,
        k=k,
        dtype=str(dtype),
        swizzle_bytes=swizzle_bytes,
        panels=over // span,
        panel_rows=panel_rows,
        span_elements=span,
        leading_bytes=leading,
        stride_bytes=stride,
        k_step_bytes=step_bytes,
        k_steps_per_panel=steps,
    )
