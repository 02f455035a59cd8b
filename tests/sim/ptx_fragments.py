"""Fragments of mma.sync, formula by formula as PTX ISA 9.1, 9.7.14.5.1 to 9.7.14.5.13, gives them.

A second formulation of what `sim/layouts/fragments.py` computes by one rule. Registers are words of
a lane; `packed` and `unpacked` go between them and the numbers of a fragment.
"""

import ml_dtypes
import numpy as np

LANE = np.arange(32)
G, T = LANE >> 2, LANE % 4
LOW = LANE < 16

BITS = {"b1": 1, "u4": 4, "s4": 4, "u8": 8, "s8": 8, "e4m3": 8, "e5m2": 8, "f16": 16, "bf16": 16,
        "tf32": 32, "f32": 32, "s32": 32, "f64": 64}  # fmt: skip
TYPES = {
    "b1": np.uint8, "u4": np.uint8, "s4": np.int8, "u8": np.uint8, "s8": np.int8,
    "s32": np.int32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32,
    "f32": np.float32, "f64": np.float64, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip

# (shape, bits of an element): row and column of the i-th element
A = {
    ("m8n8k4", 64): lambda i: (G, T),
    ("m8n8k16", 8): lambda i: (G, T * 4 + i),
    ("m8n8k32", 4): lambda i: (G, T * 8 + i),
    ("m8n8k128", 1): lambda i: (G, T * 32 + i),
    ("m16n8k4", 32): lambda i: (G if i == 0 else G + 8, T),
    ("m16n8k4", 64): lambda i: (G if i == 0 else G + 8, T),
    ("m16n8k8", 16): lambda i: (G if i < 2 else G + 8, T * 2 + (i & 1)),
    ("m16n8k8", 32): lambda i: (G if i in (0, 2) else G + 8, T if i < 2 else T + 4),
    ("m16n8k8", 64): lambda i: (G if i in (0, 2) else G + 8, T if i < 2 else T + 4),
    ("m16n8k16", 16): lambda i: (
        G if i < 2 or 4 <= i < 6 else G + 8,
        T * 2 + (i & 1) + (0 if i < 4 else 8),
    ),
    ("m16n8k16", 64): lambda i: (G, i * 2 + T) if i % 2 == 0 else (G + 8, i * 2 - 2 + T),
    ("m16n8k16", 8): lambda i: (G if i < 4 else G + 8, T * 4 + (i & 3)),
    ("m16n8k32", 4): lambda i: (G if i < 8 else G + 8, T * 8 + (i & 7)),
    ("m16n8k32", 8): lambda i: (
        G if i < 4 or 8 <= i < 12 else G + 8,
        T * 4 + (i & 3) + (0 if i < 8 else 16),
    ),
    ("m16n8k64", 4): lambda i: (
        G if i < 8 or 16 <= i < 24 else G + 8,
        T * 8 + (i & 7) + (0 if i < 16 else 32),
    ),
    ("m16n8k128", 1): lambda i: (G if i < 32 else G + 8, T * 32 + (i & 0x1F)),
    ("m16n8k256", 1): lambda i: (
        G if i < 32 or 64 <= i < 96 else G + 8,
        T * 32 + (i & 0x1F) + (0 if i < 64 else 128),
    ),
}
B = {
    ("m8n8k4", 64): lambda i: (T, G),
    ("m8n8k16", 8): lambda i: (T * 4 + i, G),
    ("m8n8k32", 4): lambda i: (T * 8 + i, G),
    ("m8n8k128", 1): lambda i: (T * 32 + i, G),
    ("m16n8k4", 32): lambda i: (T, G),
    ("m16n8k4", 64): lambda i: (T, G),
    ("m16n8k8", 16): lambda i: (T * 2 + i, G),
    ("m16n8k8", 32): lambda i: (T if i == 0 else T + 4, G),
    ("m16n8k8", 64): lambda i: (T if i == 0 else T + 4, G),
    ("m16n8k16", 16): lambda i: (T * 2 + (i & 1) + (0 if i < 2 else 8), G),
    ("m16n8k16", 64): lambda i: (T + i * 4, G),
    ("m16n8k16", 8): lambda i: (T * 4 + i, G),
    ("m16n8k32", 4): lambda i: (T * 8 + i, G),
    ("m16n8k32", 8): lambda i: (T * 4 + (i & 3) + (0 if i < 4 else 16), G),
    ("m16n8k64", 4): lambda i: (T * 8 + (i & 7) + (0 if i < 8 else 32), G),
    ("m16n8k128", 1): lambda i: (T * 32 + i, G),
    ("m16n8k256", 1): lambda i: (T * 32 + (i & 0x1F) + (0 if i < 32 else 128), G),
}
# m8n8k4 with f16, by layout; of C and D by type
QUAD_A = {
    "row": lambda i: (np.where(LOW, LANE % 4, LANE % 4 + 4), i + 0 * LANE),
    "col": lambda i: (np.where(LOW, i % 4, i % 4 + 4), LANE % 4),
}
QUAD_B = {
    "row": lambda i: (LANE % 4, np.where(LOW, i, i + 4)),
    "col": lambda i: (i + 0 * LANE, np.where(LOW, LANE % 4, LANE % 4 + 4)),
}
_X = LANE & 0b1
QUAD_C = {
    "f16": lambda i: (np.where(LOW, LANE % 4, LANE % 4 + 4), i + 0 * LANE),
    "f32": lambda i: (
        np.where(LOW, _X + (i & 0b10), _X + (i & 0b10) + 4),
        (i & 0b100) + (LANE & 0b10) + (i & 0b1),
    ),
}
# The threads of the four computations of m8n8k4.
QUAD_OF = np.select([LANE % 16 < 4, LANE % 16 < 8, LANE % 16 < 12], [0, 1, 2], 3)


def _c_of(rows):
    if rows == 8:
        return lambda i: (G, T * 2 + i)
    return lambda i: (G if i < 2 else G + 8, T * 2 + (i & 1))


def _twice(shape, bits):
    """B of a sparse shape that no dense one has: two fragments of half its depth."""
    rows, depth = (int(x) for x in shape[1:].split("n8k"))
    half = f"m{rows}n8k{depth // 2}"
    count = depth // 2 * 8 // 32
    formula = B[half, bits]

    def place(i):
        row, column = formula(i % count)
        return row + depth // 2 * (i // count), column

    return place


def places(shape, kind, operand, layout="row", sparse=False):
    """Return (product, row, column) of each element, each of shape (32, elements of a lane)."""
    rows, depth = (int(x) for x in shape[1:].split("n8k"))
    bits, quads = BITS[kind], shape == "m8n8k4" and kind != "f64"
    if quads:
        formula = {"a": QUAD_A, "b": QUAD_B, "c": QUAD_C}[operand][layout]
        count = 8 if operand == "c" else 4
    elif operand == "c":
        formula, count = _c_of(rows), rows * 8 // 32
    elif operand == "a":
        stored = f"m{rows}n8k{depth // 2}" if sparse else shape
        formula, count = A[stored, bits], rows * depth // (64 if sparse else 32)
    else:
        formula = B.get((shape, bits)) or _twice(shape, bits)
        count = depth * 8 // 32
    pairs = [np.broadcast_arrays(*formula(i), LANE)[:2] for i in range(count)]
    row, column = (np.stack([pair[n] for pair in pairs], 1) for n in (0, 1))
    product = QUAD_OF if quads else 0 * LANE
    return np.broadcast_to(product[:, None], row.shape), row, column


def packed(matrix, where, kind):
    """Return a matrix (products, rows, columns) as words of the lanes: uint8 (32, bytes)."""
    values, bits = matrix[where], BITS[kind]
    if bits >= 8:
        return np.ascontiguousarray(values.astype(TYPES[kind])).view(np.uint8)
    codes = values.astype(np.int64) & ((1 << bits) - 1)
    words = np.zeros((32, codes.shape[1] * bits // 32), np.uint64)
    for i in range(codes.shape[1]):
        words[:, i * bits // 32] |= codes[:, i].astype(np.uint64) << np.uint64(i * bits % 32)
    return words.astype(np.uint32).view(np.uint8)


def unpacked(raw, where, kind, shape):
    """Return the matrix (products, rows, columns) of 16 bits or more that some words hold."""
    out = np.zeros(shape, TYPES[kind])
    out[where] = np.ascontiguousarray(raw).view(TYPES[kind])
    return out
