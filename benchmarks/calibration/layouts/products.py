"""Whole products of random integers, laid out by the decoder: each must be exact."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tvm_hopper.sim.layouts.matrix_descriptor import MatrixDescriptor

from .descriptors import SPANS, trials, word_of
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
from .probes import Run

B_AT = 20 * 1024
N = 128
PAIRS = {  # types of B, and of the sum, by the type of A (PTX ISA 9.1, 9.7.15.5.2)
    "f16": (("f16",), ("f32", "f16")),
    "bf16": (("bf16",), ("f32",)),
    "tf32": (("tf32",), ("f32",)),
    "e4m3": (("e4m3", "e5m2"), ("f32", "f16")),
    "e5m2": (("e4m3", "e5m2"), ("f32", "f16")),
    "s8": (("s8", "u8"), ("s32",)),
    "u8": (("s8", "u8"), ("s32",)),
    "b1": (("b1",), ("s32",)),
}
NEAR_THE_END = 2**31 - 20  # an accumulator to which most products are too much


def instructions(dtype: str) -> list[Instruction]:
    """Return every form with A of one type: types of B and sums, majors, A from registers."""
    majors = (False, True) if dtype in TRANSPOSED else (False,)
    found = []
    for other, sums, b_mn in itertools.product(*PAIRS[dtype], majors):
        found += [Instruction(dtype, other, sums, N, False, a_mn, b_mn) for a_mn in majors]
        found.append(Instruction(dtype, other, sums, N, True, False, b_mn))
        if dtype in INTEGERS:
            for saturates in (False, True) if dtype != "b1" else (False,):
                more = {"saturates": saturates, "start": NEAR_THE_END}
                found.append(Instruction(dtype, other, sums, N, **more))
    return found


def draw(rng: np.random.Generator, dtype: str, shape: tuple[int, int]) -> np.ndarray:
    """Draw small integers that the type holds, and whose sums float16 holds; bits of `b1`."""
    if dtype == "b1":
        return rng.integers(0, 256, shape).astype(np.uint8)
    least = 0 if dtype == "u8" else -3
    return rng.integers(least, 4, shape).astype(np.float32).astype(STORED[dtype])


def placed(image: np.ndarray, span: int, mn: bool, at: int, values: np.ndarray) -> int:
    """Store an operand where the decoder looks for it; return its descriptor."""
    major, size = ("mn" if mn else "k"), values.dtype.itemsize
    first = trials(major, span)[0].descriptor
    made = MatrixDescriptor(at, first.leading_bytes, first.stride_bytes, 0, span)
    image.view(values.dtype)[made.addresses(major, *values.shape, size) // size] = values
    return word_of(made)


def prepare(
    instruction: Instruction, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return images, blocks and fragments, one for each pair of swizzles, and the products."""
    rng = np.random.default_rng(seed)
    spans = list(itertools.product([0] if instruction.from_registers else SPANS, SPANS))
    images = np.zeros((len(spans), IMAGE_BYTES), np.uint8)
    blocks = np.zeros(len(spans), BLOCK)
    fragments = np.zeros((len(spans), 128, 4), np.uint32)
    want = np.empty((len(spans), 64, instruction.n))
    for i, (a_span, b_span) in enumerate(spans):
        a = draw(rng, instruction.a_type, (64, instruction.stored_k))
        b = draw(rng, instruction.b_type, (instruction.n, instruction.stored_k))
        blocks[i]["image"] = blocks[i]["fragment"] = i
        if instruction.from_registers:
            fragments[i] = to_fragment(a)
        else:
            blocks[i]["a"] = placed(images[i], a_span, instruction.a_mn, 0, a)
        blocks[i]["b"] = placed(images[i], b_span, instruction.b_mn, B_AT, b)
        want[i] = _sum(instruction, a, b)
    return images, blocks, fragments, want


def _sum(instruction: Instruction, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return start + A B^T; of integers what 32 bits hold of it."""
    if instruction.a_type == "b1":
        a, b = np.unpackbits(a, axis=1), np.unpackbits(b, axis=1)
    total: np.ndarray = a.astype(np.float64) @ b.astype(np.float64).T + instruction.start
    if instruction.saturates:
        return np.minimum(total, 2**31 - 1)
    return np.where(total >= 2**31, total - 2**32, total)


def multiply(run: Run, dtype: str, seed: int = 0) -> list[dict[str, Any]]:
    """Run every form with A of one type; return a row a form."""
    rows = []
    for instruction in instructions(dtype):
        images, blocks, fragments, want = prepare(instruction, seed)
        got = from_accumulators(run(instruction, images, blocks, fragments), instruction)
        exact = (got == want).all((1, 2))
        rows.append(
            {
                "part": "products",
                "kind": instruction.ptx.removeprefix("wgmma.mma_async.sync.aligned.")
                + (f" + {instruction.start}" if instruction.start else ""),
                "a": "registers" if instruction.from_registers else _major(instruction.a_mn),
                "b": _major(instruction.b_mn),
                "tried": len(exact),
                "exact": int(exact.sum()),
            }
        )
    return rows


def _major(mn: bool) -> str:
    return "mn" if mn else "k"
