"""Recognise activations: products with a factor that rises from zero to one.

    0.5 x (1 + tanh(0.79788 (x + 0.044715 x^3)))        gelu by tanh
    0.5 x (1 + erf(0.70711 x))                          gelu

However a program writes the constants and the powers of x: those of the function are compared.
`codegen_patches/activations.py` has their replacements and errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_hopper import ir
from tvm_hopper.codegen_patches.activations import GELU, TANH_GELU, ActivationText, activation

from .polynomials import is_number, powers_of

MAX_CONSTANT_ERROR = 2.0**-17  # how far constants of a program may be from those of the function


@dataclass(frozen=True)
class Activation:
    """A function x (1 + f(u)) / 2 that stands for what a program computes.

    - `form`: as a reader would write it.
    - `function`: the name of f, which is odd.
    - `inner`: the constant of each power of x in u.
    - `text`: what is computed.
    """

    form: str
    function: str
    inner: dict[int, float]
    text: ActivationText

    @property
    def error(self) -> float:
        """The largest error, in parts of the exact value, for results that are not tiny."""
        return self.text.error


_TANH = {1: 0.7978845608028654, 3: 0.7978845608028654 * 0.044715}
_ERF = Activation("gelu (erf)", "erf", {1: 0.5**0.5}, GELU)
ACTIVATIONS = {
    dtype: (Activation("gelu (tanh)", "tanh", _TANH, text), _ERF)
    for dtype, text in TANH_GELU.items()
}
"""By the type that the result is rounded to."""


@dataclass(frozen=True)
class FoundActivation:
    """A product that has an activation in it."""

    activation: Activation
    x: Any
    rest: tuple[Any, ...]  # its other factors
    constant: float


def find_activation(node: Any, known: tuple[Activation, ...]) -> FoundActivation | None:
    """Return the activation that a product of float32 contains, or None."""
    factors, constant = _factors(node)
    for i, step in enumerate(factors):
        for row in known:
            inner = _argument(step, row.function)
            if inner is None or not is_number(2 * constant):
                continue
            others = [*factors[:i], *factors[i + 1 :]]
            for j, x in enumerate(others):
                if _is_about(powers_of(inner, x), row.inner):
                    rest = (*others[:j], *others[j + 1 :])
                    return FoundActivation(row, x, rest, 2 * constant)
    return None


def build_activation(found: FoundActivation, x: Any, rest: list[Any]) -> Any:
    """Build the product, of its x and its other factors as they are to be."""
    value = activation(found.activation.text, _half_of(x))
    for factor in rest:
        value = value * factor
    return value if found.constant == 1 else tirx.const(found.constant, "float32") * value


def _half_of(x: Any) -> Any:
    """Halve the terms of a sum: after a product one multiply-add does both."""
    if isinstance(x, tirx.Add):
        return _half_of(x.a) + _half_of(x.b)
    return tirx.const(0.5, "float32") * x


def _factors(node: Any) -> tuple[list[Any], float]:
    """Return what a product multiplies, and its constants as one."""
    if isinstance(node, tirx.FloatImm):
        return [], float(node.value)
    if not isinstance(node, tirx.Mul):
        return [node], 1.0
    (left, a), (right, b) = _factors(node.a), _factors(node.b)
    return left + right, a * b


def _argument(node: Any, function: str) -> Any | None:
    """Return u of 1 + f(u)."""
    if not isinstance(node, tirx.Add):
        return None
    for one, call in ((node.a, node.b), (node.b, node.a)):
        is_one = isinstance(one, tirx.FloatImm) and float(one.value) == 1
        is_call = isinstance(call, ir.Call)
        if is_one and is_call and str(getattr(call.op, "name", "")) == f"tirx.{function}":
            return call.args[0]
    return None


def _is_about(powers: dict[int, float] | None, wanted: dict[int, float]) -> bool:
    if powers is None:
        return False
    present = {n: c for n, c in powers.items() if c}
    return set(present) == set(wanted) and all(
        abs(present[n] - c) <= MAX_CONSTANT_ERROR * abs(c) for n, c in wanted.items()
    )
