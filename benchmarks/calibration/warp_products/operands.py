"""Random fragments: whole numbers, whose products are exact, and numbers of any size."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

from tvm_hopper.sim.ops.sparse_metadata import gathered, meaningless

from .forms import WarpForm

WARPS = 32  # fragments of a form and a kind of operands
SLOW_WARPS = 4  # where the simulator rounds element by element
_FLOATS = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


class Fragments(NamedTuple):
    """Registers of some warps: uint8 (WARPS, 32, bytes of a lane), metadata uint32 (WARPS, 32)."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    words: np.ndarray


def draw(form: WarpForm, whole: bool, seed: int = 0) -> Fragments:
    """Draw the operands of a form.

    Integers are of all sizes, C near the ends of its range, so that sums wrap around or saturate.
    Metadata are ordered with whole numbers; with others, where PTX allows it, in any order.
    """
    rng = np.random.default_rng(seed)
    product = form.product
    warps = WARPS if product.rounding == "rn" else SLOW_WARPS
    sizes = (product.a_bytes, product.b_bytes, product.c_bytes)
    kinds = (product.a_type, product.b_type, product.c_type)
    drawn = [
        _elements(rng, kind, (warps, 32, size), whole)
        for kind, size in zip(kinds, sizes, strict=True)
    ]
    return Fragments(*drawn, _metadata(rng, form, (warps, 32), whole))


def _elements(
    rng: np.random.Generator, kind: str, shape: tuple[int, int, int], whole: bool
) -> np.ndarray:
    """Return the bytes of some registers."""
    if kind in _FLOATS:
        count = shape[2] // _FLOATS[kind].itemsize
        numbers = (*shape[:2], count)
        if whole:
            values = rng.integers(-3, 4, numbers).astype(np.float32)
        else:
            values = rng.normal(size=numbers) * 2.0 ** rng.integers(-4, 3, numbers)
        return np.ascontiguousarray(values.astype(_FLOATS[kind])).view(np.uint8)
    if kind == "s32":
        numbers = (*shape[:2], shape[2] // 4)
        ends = rng.choice([-1, 1], numbers) * (2**31 - rng.integers(1, 2**15, numbers))
        return ends.astype(np.int32).view(np.uint8)
    return rng.integers(0, 256, shape).astype(np.uint8)


def _metadata(
    rng: np.random.Generator, form: WarpForm, shape: tuple[int, int], ordered: bool
) -> np.ndarray:
    """Return words of fields that have a meaning, in all lanes, whether they are named or not."""
    ordered = ordered or form.mods.get("spvariant") != "sp"
    kind = form.product.a_type
    legal = np.setdiff1d(np.arange(16), meaningless(np.arange(16), kind, ordered))
    fields = rng.choice(legal, (*shape, 8)).astype(np.uint32)
    return (fields << np.arange(0, 32, 4, dtype=np.uint32)).sum(2, dtype=np.uint32)


def fields_of(form: WarpForm, words: np.ndarray) -> np.ndarray | None:
    """Return the metadata of one warp, None for a form without."""
    product = form.product
    if not form.sparse:
        return None
    return gathered(words, product.a_type, product.depth, form.selector)
