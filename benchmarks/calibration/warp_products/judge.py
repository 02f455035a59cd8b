"""Compare what a chip computed with the simulator's function: equal, or within PTX's bound.

PTX (ISA 9.1, 9.7.14.5.14, "Precision and rounding") leaves the order and the rounding of sums of
floats open, and says how precise they are at least: half for sums in f16 of f16, single else. So a
sum of n terms is off by n units in the last place of sum|term| at most. f64 is a chain of fused
multiply-adds here, k upwards, and has to be equal, as are integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.ops.mma_forms import FragmentProduct

from .forms import WarpForm
from .operands import Fragments, draw, fields_of

PART = "products of a warp"
_EXACT = ("s32", "f64")
_UNIT = {"f16": 2.0**-10, "f32": 2.0**-23}  # of directed rounding, which PTX allows
_LEAST = {"f16": 2.0**-24, "f32": 2.0**-149}  # of a number beside zero


def simulated(form: WarpForm, given: Fragments) -> np.ndarray:
    """Return D as the simulator computes it: uint8 (warps, 32, bytes of a lane)."""
    return np.stack(
        [
            form.product.multiply(a, b, c, fields_of(form, words))
            for a, b, c, words in zip(*given, strict=True)
        ]
    )


def bound_of(product: FragmentProduct, operands: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return how far from the exact sums those of a chip may be."""
    left, right, start = (np.abs(x) for x in operands)
    sizes = left @ right + start
    in_halves = product.c_type == product.result_type == "f16"
    terms = (product.depth + 1) * _UNIT["f16" if in_halves else "f32"]
    kind = product.result_type  # rounded to it in the end, here to the nearest
    bound: np.ndarray = sizes * (terms + _UNIT[kind]) + _LEAST[kind]
    return bound


def judge(
    form: WarpForm, whole: bool, given: Fragments, got: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return which results are right, which are equal, and the largest part of the bound."""
    product = form.product
    kind, want = product.result_type, simulated(form, given)
    right, equal, worst = [], [], 0.0
    for mine, theirs, a, b, c, words in zip(want, got, *given, strict=True):
        ours, chips = (product.matrix("c", kind, x) for x in (mine, theirs))
        same = (ours == chips) | (np.isnan(ours) & np.isnan(chips))
        equal.append(same)
        if whole or kind in _EXACT:
            right.append(same)
            continue
        operands = product.operands(a, b, c, fields_of(form, words))
        part = np.abs(chips - ours) / bound_of(product, operands)
        part = np.where(np.isnan(part), np.inf, part)
        worst = max(worst, float(np.where(same, 0, part).max()))
        right.append(same | (part <= 1))
    return np.array(right), np.array(equal), worst


def rows_of(run: Any, some: list[WarpForm], seed: int = 0) -> list[dict[str, Any]]:
    """Return a row a form.

    Parameters
    ----------
    run : callable
        (form, fragments) -> D, uint8 (warps, 32, bytes of a lane).
    """
    rows = []
    for form in some:
        row = {"part": PART, "kind": form.opcode, "name": form.name}
        whole = _one(run, form, True, seed)
        other = _one(run, form, False, seed + 1)
        row["tried"] = whole["tried"] + other["tried"]
        row["as decoded"] = whole["right"] + other["right"]
        row["of any size"], row["equal"] = other["tried"], other["equal"]
        row["worst"] = other["worst"]
        rows.append(row | whole["first"] | other["first"])
    return rows


def _one(run: Any, form: WarpForm, whole: bool, seed: int) -> dict[str, Any]:
    given = draw(form, whole, seed)
    got = run(form, given)
    right, equal, worst = judge(form, whole, given, got)
    first = {}
    if not right.all():
        first["first, whole" if whole else "first"] = _first(form, given, got, right)
    return {
        "tried": right.size,
        "right": int(right.sum()),
        "equal": int(equal.sum()),
        "worst": worst,
        "first": first,
    }


def _first(form: WarpForm, given: Fragments, got: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Describe the first result that differs, with its warp's operands."""
    place = tuple(int(x) for x in np.argwhere(~right)[0])
    warp, kind = place[0], form.product.result_type
    mine, theirs = (
        float(form.product.matrix("c", kind, d[warp])[place[1:]])
        for d in (simulated(form, given), got)
    )
    held = (given.a, given.b, given.c)
    return {
        "place": place,
        "simulated": mine,
        "chip": theirs,
        "wrong": int((~right).sum()),
        "a, b, c": [np.ascontiguousarray(x[warp]).view(np.uint32).tolist() for x in held],
        "e": given.words[warp].tolist(),
    }
