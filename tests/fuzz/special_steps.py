"""Programs over special values in numpy, and where a result of one is wrong (special.py)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tvm_hopper.testing.workloads import numpy_type

ANY_PLACE = -1  # of a maximum, in a row with NaN
SLACK = 8  # roundings of the program's type
erf = np.vectorize(math.erf, otypes=["float64"])


@dataclass
class Program:
    """Steps over tensors: (operator, operands by number, attributes); inputs come first."""

    seed: int
    dtype: str
    shapes: list[tuple[int, ...]]
    steps: list[tuple[str, tuple[int, ...], dict[str, Any]]] = field(default_factory=list)
    summed: bool = False

    def do(self, op: str, *operands: int, **attributes: Any) -> int:
        """Append a step; return its number."""
        self.steps.append((op, operands, attributes))
        return len(self.shapes) + len(self.steps) - 1

    def __str__(self) -> str:
        """Print the steps on one line."""
        lines = [f"x{i}: {shape}" for i, shape in enumerate(self.shapes)]
        for i, (op, operands, attributes) in enumerate(self.steps, len(self.shapes)):
            given = [f"x{k}" for k in operands] + [f"{k}={v}" for k, v in attributes.items()]
            lines.append(f"x{i} = {op}({', '.join(given)})")
        return f"seed {self.seed} {self.dtype}: " + "; ".join(lines)


# -- numpy ----------------------------------------------------------------------------------------


def _sum(x: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    """Sum; of float32 one element after another, which is as far off as any order may be."""
    if x.dtype == np.float64:
        return x.sum(axis, keepdims=keepdims)
    last = np.add.accumulate(x, axis=axis).take([-1], axis=axis)
    return last if keepdims else last.squeeze(axis)


def _mean(x: np.ndarray, axis: int = -1, keepdims: bool = False) -> np.ndarray:
    return _sum(x, axis, keepdims) / x.dtype.type(x.shape[axis])


def _place(x: np.ndarray, axis: int) -> np.ndarray:
    """Return the places of the largest elements, as `relax/row_places.py` states them.

    Of rows with NaN any; 0 of rows whose elements are -inf or the initial value, the least number.
    That of bfloat16 is -inf.
    """
    found, most = x.argmax(axis), x.max(axis)
    least = [-np.finfo(t).max for t in (np.float16, np.float32)]
    found = np.where(np.isin(most, least), 0, found)
    return np.where(np.isnan(x).any(axis), ANY_PLACE, found)


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / _sum(e, axis, True)


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    s = x - x.max(axis, keepdims=True)
    return s - np.log(_sum(np.exp(s), axis, True))


def _log_sum_exp(x: np.ndarray) -> np.ndarray:
    largest = x.max(-1, keepdims=True)
    if x.dtype == np.float64:  # elsewhere a row of -inf gives NaN, which is right, too
        largest = np.maximum(largest, ml_dtypes.finfo("float32").min)
    return np.log(_sum(np.exp(x - largest), -1, True)) + largest


def _layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    d = x - _mean(x, keepdims=True)
    return d / np.sqrt(_mean(d * d, keepdims=True) + 1e-5) * w + b


NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "maximum": np.maximum, "minimum": np.minimum, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh, "abs": np.abs, "negative": np.negative,
    "floor": np.floor, "ceil": np.ceil, "round": np.round, "erf": erf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + erf(x * math.sqrt(0.5))), "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x, low, high: np.clip(x, low, high), "scale": lambda x, by: x * by,
    "where": lambda x, y, z: np.where(x > y, x, z),
    "sum": _sum, "mean": _mean,
    "max": lambda x, axis: x.max(axis), "min": lambda x, axis: x.min(axis),
    "argmax": _place, "argmin": lambda x, axis: _place(-x, axis),
    "softmax": _softmax, "log_softmax": _log_softmax, "layer_norm": _layer_norm,
    "rms_norm": lambda x, w: x / np.sqrt(_mean(x * x, keepdims=True) + 1e-5) * w,
    "logsumexp": _log_sum_exp,
    "product": lambda x, w: x @ w.T,
}  # fmt: skip


MAGNITUDES: dict[str, Callable[..., np.ndarray]] = {
    "sum": lambda x, axis: np.abs(x).sum(axis),
    "mean": lambda x, axis: np.abs(x).mean(axis),
    "product": lambda x, w: np.abs(x) @ np.abs(w).T,
    "layer_norm": lambda x, w, _: (
        np.abs(x).mean(-1, keepdims=True) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * np.abs(w)
    ),
}

# What a step's own formula may be off, for any type: float32's `1 + erf(u)` keeps few digits of a
# small result, as in PyTorch. CUDA's erff is right to two units of the last place, here of 1.
CANCELS: dict[str, Callable[..., np.ndarray]] = {
    "gelu": lambda x: 0.5 * np.abs(x) * 2 * 2.0**-24,
}


def evaluate(
    program: Program,
    inputs: list[np.ndarray],
    rounded: bool,
    fused: bool = False,
    moved: tuple[int, float] = (0, 0.0),
) -> np.ndarray:
    """Run the steps in numpy: in float64, or each result rounded to the program's type.

    With `fused` a product that is added or subtracted is not rounded in between: as by fma. `moved`
    is the number of one result, and what part of itself is added to it, and of what it cancels.
    """
    wide = "float32" if rounded else "float64"
    known = [x.astype(wide) for x in inputs]
    products: dict[int, np.ndarray] = {}  # exact
    with np.errstate(all="ignore"):
        for op, operands, attributes in program.steps:
            given = [known[i] for i in operands]
            if fused and op in ("add", "subtract"):
                given = [products.get(i, known[i]).astype("float64") for i in operands]
            elif fused and op in ("scale", "multiply"):
                wider = [x.astype("float64") for x in given]
                products[len(known)] = np.asarray(NUMPY[op](*wider, **attributes))
            value = np.asarray(NUMPY[op](*given, **attributes))
            if value.dtype.kind == "f":
                value = value.astype(numpy_type(program.dtype)).astype(wide) if rounded else value
                if moved[0] == len(known):
                    lost = CANCELS[op](*given) if op in CANCELS else 0.0
                    value = value * (1 + moved[1]) + np.sign(moved[1]) * lost
            known.append(value)
    return known[-1]


def summed_magnitudes(program: Program, inputs: list[np.ndarray]) -> np.ndarray:
    """Return what a program's sum is of its terms' magnitudes: 0 where that is no number.

    Sums are of inputs, and no step behind one moves a result by much more than its operand.
    """
    op, operands, attributes = program.steps[0]
    if op not in MAGNITUDES:
        return np.zeros(())
    with np.errstate(all="ignore"):
        found = MAGNITUDES[op](*(inputs[i].astype("float64") for i in operands), **attributes)
    return np.where(np.isfinite(found), found, 0)


def moved_by_steps(program: Program, inputs: list[np.ndarray], exact: np.ndarray) -> np.ndarray:
    """Return by how much a unit in the last place of each step before the last moves the result.

    `x - silu(x)` of 7 is 0.006, and has one of 7.
    """
    eps, first = float(ml_dtypes.finfo(program.dtype).eps), len(program.shapes)
    total = np.zeros(exact.shape)
    with np.errstate(all="ignore"):
        for step in range(first, first + len(program.steps) - 1):
            ways = [evaluate(program, inputs, False, moved=(step, x)) for x in (eps, -eps)]
            by = np.maximum(*(np.abs(x.astype("float64") - exact) for x in ways))
            total += np.where(np.isfinite(by), by, 0)
    return total


def wrong(
    got: np.ndarray,
    exact: np.ndarray,
    rounded: np.ndarray,
    dtype: str,
    magnitudes: np.ndarray | float = 0.0,
    moved: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Return where a result is neither near to the exact one nor to the rounded one."""
    if got.dtype.kind in "iu":
        return (got != exact) & (got != rounded) & (exact != ANY_PLACE)
    info = ml_dtypes.finfo(dtype)
    eps, limit = float(info.eps), float(info.max)
    least = SLACK * 2.0**-24 * (1 + magnitudes)  # what is computed in float32 may cancel
    g, e, r = (x.astype("float64") for x in (got, exact, rounded))
    with np.errstate(all="ignore"):
        rounding = np.maximum(np.where(np.isfinite(r), 4 * np.abs(r - e), 0), moved)
        near_exact = np.abs(g - e) <= SLACK * eps * np.abs(e) + rounding + least
        near_rounded = np.abs(g - r) <= SLACK * eps * np.abs(r) + least
        near_exact, near_rounded = near_exact & np.isfinite(e), near_rounded & np.isfinite(r)
        # an infinity, or the number that a greatest or least one begins with
        over = (np.abs(g) >= limit) & (np.abs(e) >= limit * (1 - SLACK * eps))
        over &= np.sign(g) == np.sign(e)
    nan = np.isnan(g) & (np.isnan(e) | np.isnan(r))
    return ~(near_exact | near_rounded | over | nan | (g == e) | (g == r))
