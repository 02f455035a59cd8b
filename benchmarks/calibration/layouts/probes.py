"""Ask the chip for the address of every element that it reads.

An operand's memory holds one digit of each element's own number, the other operand is the identity:
the accumulators are the digits of what was read. A few launches give all digits, and with them the
map from (row, k) to an address, whatever it may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tvm_hopper.sim.layouts.matrix_descriptor import MatrixDescriptor

from .descriptors import CANONICAL, SPANS, Trial, trials, word_of
from .instruction import (
    BLOCK,
    IMAGE_BYTES,
    INTEGERS,
    STORED,
    TRANSPOSED,
    Instruction,
    from_accumulators,
    to_fragment,
)

# Runs an instruction: images (bytes), blocks, fragments -> accumulators (blocks, 128, registers).
Run = Callable[[Instruction, np.ndarray, np.ndarray, np.ndarray], np.ndarray]

BASE = 8  # every type holds 0 to 7
IDENTITY_AT = 44 * 1024
ROWS = {"A": 64, "B": 128}
AS_DECODED, OTHER = "as decoded", "otherwise"
WITHOUT_OFFSET = "as with base offset 0"


def probe_instruction(dtype: str, operand: str, major: str) -> Instruction:
    """Return the instruction that shows one operand: A beside an identity, B beside registers."""
    sums = "s32" if dtype in INTEGERS else "f32"
    if operand == "A":
        return Instruction(dtype, dtype, sums, 32, a_mn=major == "mn")
    return Instruction(dtype, dtype, sums, ROWS["B"], True, b_mn=major == "mn")


def digit_images(dtype: str) -> np.ndarray:
    """Return shared memory for each digit, uint8 (digits, IMAGE_BYTES), identity included."""
    kind = STORED[dtype]
    numbers = np.arange(IDENTITY_AT // kind.itemsize)
    digits = len(np.base_repr(len(numbers) - 1, BASE))
    images = np.zeros((digits, IMAGE_BYTES), np.uint8)
    for digit in range(digits):
        values = (numbers // BASE**digit % BASE).astype(np.float32).astype(kind)
        images[digit, :IDENTITY_AT] = values.view(np.uint8)
    k = 32 // kind.itemsize
    one = identity_b().addresses("k", 32, k, kind.itemsize) // kind.itemsize
    images.view(kind)[:, one] = np.eye(32, k).astype(kind)
    return images


def identity_b() -> MatrixDescriptor:
    """Return the descriptor of B = identity: 32 rows without a swizzle."""
    return MatrixDescriptor(IDENTITY_AT, 128, 256, 0, 0)


def addresses_read(
    run: Run, dtype: str, operand: str, major: str, chosen: list[MatrixDescriptor]
) -> np.ndarray:
    """Return the byte addresses read under each descriptor, int64 (descriptors, rows, k)."""
    instruction = probe_instruction(dtype, operand, major)
    images, kind = digit_images(dtype), STORED[dtype]
    blocks = np.zeros((len(chosen), len(images)), BLOCK)
    blocks["image"] = np.arange(len(images))
    words = np.array([word_of(x) for x in chosen], np.uint64)[:, None]
    if operand == "A":
        blocks["a"], blocks["b"] = words, word_of(identity_b())
    else:
        blocks["b"] = words
    fragments = to_fragment(np.eye(64, instruction.k).astype(kind))[None]
    words = run(instruction, images, blocks.ravel(), fragments)
    d = from_accumulators(words, instruction).reshape(*blocks.shape, 64, instruction.n)
    read = d[..., : instruction.k] if operand == "A" else d[:, :, : instruction.k].swapaxes(2, 3)
    weights = BASE ** np.arange(len(images))
    numbers = (read * weights[None, :, None, None]).sum(1)
    return numbers.astype(np.int64) * kind.itemsize


def judge(read: np.ndarray, trial: Trial, rows: int, itemsize: int) -> str:
    """Tell how the chip's map of one descriptor compares with the decoder's."""
    depth = 32 // itemsize
    if np.array_equal(read, trial.descriptor.addresses(trial.major, rows, depth, itemsize)):
        return AS_DECODED
    plain = replace(trial.descriptor, base_offset=0)
    if np.array_equal(read, plain.addresses(trial.major, rows, depth, itemsize)):
        return WITHOUT_OFFSET
    return OTHER


def probe(run: Run, dtype: str) -> list[dict[str, Any]]:
    """Try every layout of one type as A and as B; return a row a layout, operand and kind."""
    rows = []
    itemsize = STORED[dtype].itemsize
    for major in ("k", "mn") if dtype in TRANSPOSED else ("k",):
        for operand, height in ROWS.items():
            for span in SPANS:
                tried = trials(major, span)
                read = addresses_read(run, dtype, operand, major, [t.descriptor for t in tried])
                told = [judge(r, t, height, itemsize) for r, t in zip(read, tried, strict=True)]
                rows += _summed(dtype, operand, major, span, tried, told, read)
    return rows


def _summed(
    dtype: str,
    operand: str,
    major: str,
    span: int,
    tried: list[Trial],
    told: list[str],
    read: np.ndarray,
) -> list[dict[str, Any]]:
    rows = []
    for kind in dict.fromkeys(trial.kind for trial in tried):
        counts = Counter(t for t, trial in zip(told, tried, strict=True) if trial.kind == kind)
        row: dict[str, Any] = {
            "part": "canonical layouts" if kind == CANONICAL else "open",
            "kind": kind,
            "type": dtype,
            "operand": operand,
            "major": major,
            "span": span,
            "tried": sum(counts.values()),
            **{name: counts[name] for name in (AS_DECODED, WITHOUT_OFFSET, OTHER)},
        }
        strange = [
            i for i, t in enumerate(tried) if t.kind == kind and told[i] not in (AS_DECODED,)
        ]
        if strange:  # one whole map, so that a new rule can be read off it
            first = strange[0]
            row["first"] = {
                "descriptor": vars(tried[first].descriptor),
                "read": read[first][:, :: 16 // STORED[dtype].itemsize].tolist(),
            }
        rows.append(row)
    return rows
