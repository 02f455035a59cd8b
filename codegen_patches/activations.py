"""TIR operators for activations x S(x) that take half their argument: one exponential, few sums.

    h + |h| (1 - 2^P(|h|))        x = 2 h

S rises from zero to one, and S(-x) is 1 - S(x) = 2^(P(x / 2) - 1) for x >= 0. The logarithm of that
is nearly a sum of few powers. Tensor cores wait for what follows a product, and an SM issues
four instructions a cycle, whichever they are: each one for every element of a tile of 128 x 256 is
256 cycles. With powers up to the fourth an element takes eight; `1 + tanh(u)` with a reciprocal
(approximations.py) takes twelve.

A power fewer is too few for float16. With powers up to the fifth, tanh-gelu is off by 0.83 units of
its last place before rounding, up to the sixth by 0.08; erf-gelu is off by 0.81 with the fourth and
by 0.08 with the fifth.

P goes to minus infinity, and infinities come out as they should: the highest power has a negative
constant. Where it has none, what begins at some power is below zero up to x = 12, and taken as
minus its absolute value, which an instruction does beside. Errors are parts of the exact value, and
2^-22 next to that: 1 - 2^P has no digits below 2^-24, as 1 + tanhf(u) has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_hopper import ir

from .operators import make_known

BESIDE = 2.0**-22  # the error that small results have in any case


@dataclass(frozen=True)
class ActivationText:
    """An operator and what it computes.

    - `logarithm`: the constants of the powers of x, from the zeroth on, in -log2 S(-x) for x >= 0.
      By Lawson's algorithm in float64, errors divided by the larger of the value and 2^-14, or
      (folded) by their sum with 2^-10.
    - `error`: the largest error, in parts of the exact value, and BESIDE.
    - `folded`: the power of x from which on the sum, divided by it, is minus its absolute value;
      None: no.
    """

    name: str
    logarithm: tuple[float, ...]
    error: float
    folded: int | None = None

    @property
    def of_half(self) -> list[float]:
        """The constants of the powers of |h| in P, from the zeroth on."""
        return [(n == 0) - c * 2**n for n, c in enumerate(self.logarithm)]

    @property
    def text(self) -> str:
        """The body of a CUDA function of h."""
        *lower, highest = self.of_half
        steps = "".join(
            f"    p = fmaf({'-fabsf(p)' if n + 1 == self.folded else 'p'}, a, {lower[n]:.9g}f);\n"
            for n in reversed(range(len(lower)))
        )
        return f"""\
    float a = fabsf(h), p = {highest:.9g}f;
{steps}    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(p));
    return fmaf(a, 1.0f - p, h);"""


TANH_GELU = {
    "float16": ActivationText(
        "tvm_hopper_gelu_tanh_float16",
        (
            0.9999314414135299,
            1.152814466880324,
            0.4507318640091106,
            0.0676404001483176,
            -0.02204552000213724,
            0.006071984504889779,
            -0.0004708452273517277,
        ),
        2.0**-15,
        folded=3,
    ),
    "bfloat16": ActivationText(
        "tvm_hopper_gelu_tanh_bfloat16",
        (
            1.0014457608683291,
            1.1282221390902805,
            0.5169021376052768,
            0.002137916898385174,
            0.007321368649595947,
        ),
        2.0**-9.9,
    ),
}
"""0.5 x (1 + tanh(0.79788 (x + 0.044715 x^3))), by what the result is rounded to."""
GELU = ActivationText(
    "tvm_hopper_gelu_erf",
    (
        1.000120930193199,
        1.1491753584745001,
        0.46412139362266613,
        0.04823705930562077,
        -0.005827254985424408,
        0.00032050929197701566,
    ),
    2.0**-13,
)
"""0.5 x (1 + erf(0.70711 x))."""


def register() -> None:
    """Make the operators known to TVM and to its CUDA code generator, once."""
    for row in (*TANH_GELU.values(), GELU):
        make_known(row.name, "(float h)", row.text, returns=("float", "float32"))


def activation(row: ActivationText, half: Any) -> Any:
    """Build x S(x) of half an x of float32."""
    register()
    return ir.call_op(f"tirx.{row.name}", "float32", half)
