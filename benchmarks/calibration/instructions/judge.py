"""Compare what a chip computed with the simulator's function: bits, or an error in its bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_hopper.sim.arithmetic.approximations import BOUNDS, EXACT, bound_of, error_in_bound
from tvm_hopper.sim.arithmetic.formats import FORMATS, Format, decode, flush
from tvm_hopper.sim.arithmetic.integers import unpack

from .forms import Form
from .operands import registers

_APPROXIMATIONS = ("div_f", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh")


def _is_approximate(form: Form) -> bool:
    return form.mods.get("mode") in ("approx", "full") and form.name.startswith(_APPROXIMATIONS)


def simulated(form: Form, columns: list[np.ndarray]) -> list[np.ndarray]:
    """Return the bits of each result as the simulator computes them."""
    found = form.call(*registers(form, columns))
    return [np.ascontiguousarray(x).view(f"uint{8 * x.dtype.itemsize}") for x in found]


def _elements(bits: np.ndarray, kind: str) -> list[tuple[np.ndarray, Format]] | None:
    """Return the elements of a floating-point result; None if it is none."""
    name, _, lanes = kind.partition("x")
    form = FORMATS.get(name)
    if form is None:
        return None
    parts = unpack(bits, form.bits, int(lanes)) if lanes else [bits.astype(form.carrier)]
    return [(part, form) for part in parts]


def judge(form: Form, columns: list[np.ndarray], got: list[np.ndarray]) -> dict[str, Any]:
    """Return a row: how many results are as simulated, how far the worst one is off."""
    if _is_approximate(form):
        return _judge_approximation(form, columns, got[0])
    want = simulated(form, columns)
    right = np.ones(len(got[0]), bool)
    other_nan = 0
    for (kind, _), mine, theirs in zip(form.targets, want, got, strict=True):
        pairs = _elements(mine, kind)
        if pairs is None:
            right &= mine == theirs
            continue
        for (a, number), (b, _) in zip(pairs, _elements(theirs, kind) or [], strict=True):
            nan = np.isnan(decode(a, number)) & np.isnan(decode(b, number))
            other_nan += int((nan & (a != b)).sum())
            right &= (a == b) | nan
    return {
        "form": form.opcode,
        "name": form.name,
        "tried": len(right),
        "as simulated": int(right.sum()),
        "other NaN": other_nan,
        **_first(form, columns, want, got, right),
    }


def _first(
    form: Form,
    columns: list[np.ndarray],
    want: list[np.ndarray],
    got: list[np.ndarray],
    right: np.ndarray,
) -> dict[str, Any]:
    """Describe the first results that differ."""
    wrong = np.nonzero(~right)[0][:4]
    if not len(wrong):
        return {}
    return {
        "first": [
            {
                "operands": [hex(int(c[i])) for c in columns],
                "simulated": [hex(int(w[i])) for w in want],
                "chip": [hex(int(g[i])) for g in got],
            }
            for i in wrong
        ]
    }


def _judge_approximation(form: Form, columns: list[np.ndarray], got: np.ndarray) -> dict[str, Any]:
    """Judge an approximation by PTX's bound; where PTX states none nothing is wrong."""
    kind = form.mods["type"]
    number = FORMATS[kind.partition("x")[0]]
    name = form.name.removesuffix("_half").removesuffix("_f")
    if name == "div":
        name = f"div.{form.mods['mode']}"
    ftz = bool(form.mods.get("ftz"))
    tried = within = without = 0
    worst, first = 0.0, []
    lists = [_elements(column, kind) or [] for column in columns]
    want = _elements(simulated(form, columns)[0], kind) or []
    for lane, (bits, _) in enumerate(_elements(got, kind) or []):
        values = [decode(parts[lane][0], number) for parts in lists]
        values = [flush(v, number) for v in values] if ftz else values
        with np.errstate(all="ignore"):
            exact = EXACT[name](*values)
        mine, theirs = decode(want[lane][0], number), decode(bits, number)
        for i in range(len(bits)):
            operands = [float(v[i]) for v in values]
            bound = bound_of(BOUNDS[name, number.name], operands[-1])
            special = not all(map(np.isfinite, operands)) or (
                name == "div.approx" and abs(operands[-1]) > 2.0**126
            )  # PTX lists these results: nothing but them is right
            if bound is None and not special:
                without += 1
                continue
            tried += 1
            if special or bound is None:
                error = 0.0 if np.array_equal(mine[i], theirs[i], equal_nan=True) else np.inf
            else:
                results = (float(mine[i]), float(theirs[i]), float(exact[i]))
                error = _error(*results, bound, number, ftz)
            within += error <= 1.0
            worst = max(worst, error)
            if error > 1.0 and len(first) < 4:
                first.append(
                    {
                        "operands": operands,
                        "simulated": float(mine[i]),
                        "chip": float(theirs[i]),
                        "part of the bound": error,
                    }
                )
    return {
        "form": form.opcode,
        "name": form.name,
        "tried": tried,
        "as simulated": within,
        "worst": worst,
        "without bound": without,
        **({"first": first} if first else {}),
    }


def _error(
    mine: float, theirs: float, exact: float, bound: Any, number: Format, ftz: bool
) -> float:
    """Return an error as a part of its bound; of infinities and NaN zero or infinity."""
    if mine == theirs or (np.isnan(mine) and np.isnan(theirs)):
        return 0.0
    tiny = 2.0**number.least
    if ftz and theirs == 0 and abs(exact) < tiny * (1 + 2.0**-20):
        return 0.0  # flushed, and rounded to the least normal number here
    if not np.isfinite(theirs) or not np.isfinite(exact):
        near = abs(exact) >= number.largest * (1 - 2.0**-20) and np.isfinite(exact)
        return 0.0 if near and abs(theirs) >= number.largest * (1 - 2.0**-20) else np.inf
    return error_in_bound(bound, theirs, exact, number)
