"""Every form of a register instruction against a reference that shares nothing with it."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from tvm.backend.cuda.ptx.table import TABLE

from benchmarks.calibration.instructions.forms import forms_of
from benchmarks.calibration.instructions.judge import simulated
from benchmarks.calibration.instructions.operands import draw
from tvm_hopper.sim.arithmetic.approximations import BOUNDS, bound_of, error_in_bound
from tvm_hopper.sim.arithmetic.formats import FORMATS, decode
from tvm_hopper.sim.arithmetic.table import INSTRUCTIONS

from . import ptx_reference as ref
from .ptx_reference_table import REFERENCES, join, split

APPROXIMATE = ("ex2", "ex2_half", "lg2", "sin", "cos", "tanh", "tanh_half", "rsqrt")
ROWS = 600  # of one instruction, shared among its forms
MOST_FORMS = 48


def is_approximate(form):
    return form.mods.get("mode") in ("approx", "full")


def chosen(name):
    """Return some forms of an instruction, the same ones each time."""
    forms = forms_of(name)
    if len(forms) <= MOST_FORMS:
        return forms
    rng = np.random.default_rng(7)
    return [forms[i] for i in sorted(rng.permutation(len(forms))[:MOST_FORMS])]


def same(kind, mine, want):
    """Tell whether bits agree; where PTX leaves a NaN open, any NaN does."""
    name = kind.partition("x")[0]
    if name not in ref.SHAPES:
        return mine == want
    size = ref.bits_of(name)
    return all(
        x == y or (ref.is_nan(ref.read(x, name)) and ref.is_nan(ref.read(y, name)))
        for x, y in zip(split(mine, f"u{size}x4"), split(want, f"u{size}x4"), strict=True)
    )


def test_each_instruction_has_a_reference():
    assert set(REFERENCES) | set(APPROXIMATE) == set(INSTRUCTIONS)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_results_are_those_of_ptx(name):
    forms = [form for form in chosen(name) if not is_approximate(form)]
    rows = max(ROWS // len(forms), 12)
    for number, form in enumerate(forms):
        columns = draw(form, number)
        pick = np.random.default_rng(number).permutation(len(columns[0]))[:rows]
        columns = [column[pick] for column in columns]
        found = simulated(form, columns)
        for i in range(rows):
            words = iter([int(column[i]) for column in columns])
            operands = [
                int(form.immediate) if kind == "imm" else next(words) for kind, _ in form.sources
            ]
            want = REFERENCES[name](form.mods, *operands)
            want = want if isinstance(want, tuple) else (want,)
            for (kind, dtype), got, bits_ in zip(form.targets, found, want, strict=True):
                size = 8 * np.dtype(dtype).itemsize
                mine, theirs = int(got[i]), bits_ % (1 << size)
                assert same(kind, mine, theirs), (
                    f"{form.opcode} of {[hex(o) for o in operands]}: {mine:#x}, need {theirs:#x}"
                )


def series(first, following):
    """Add terms until they vanish; `following(term, n)` gives the next one."""
    total, term, n = Decimal(0), first, 0
    while abs(term) > Decimal(10) ** -45:
        total += term
        n += 1
        term = following(term, n)
    return total


PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
LN2 = Decimal(2).ln()


def angle(x):
    """Return an angle between -pi and pi."""
    return x - 2 * PI * (x / (2 * PI)).to_integral_value()


def tanh(x):
    return x if abs(x) < Decimal("1e-20") else ((2 * x).exp() - 1) / ((2 * x).exp() + 1)


EXACT = {
    "ex2": lambda x: (x * LN2).exp(),
    "lg2": lambda x: x.ln() / LN2,
    "rsqrt": lambda x: 1 / x.sqrt(),
    "sqrt": lambda x: x.sqrt(),
    "rcp": lambda x: 1 / x,
    "div.approx": lambda x, y: x / y,
    "div.full": lambda x, y: x / y,
    "tanh": lambda x: tanh(max(min(x, Decimal(60)), Decimal(-60))),
    "sin": lambda x: series(angle(x), lambda t, n: -t * angle(x) ** 2 / (2 * n * (2 * n + 1))),
    "cos": lambda x: series(Decimal(1), lambda t, n: -t * angle(x) ** 2 / (2 * n * (2 * n - 1))),
}
# Inputs whose results PTX lists (9.7.3.13 to 9.7.3.22): -inf, -0, +0, +inf, NaN; None is NaN.
INF = math.inf
CORNERS = {
    "rcp": (-0.0, -INF, INF, 0.0, None),
    "sqrt": (None, -0.0, 0.0, INF, None),
    "rsqrt": (None, -INF, INF, 0.0, None),
    "sin": (None, -0.0, 0.0, None, None),
    "cos": (None, 1.0, 1.0, None, None),
    "lg2": (None, -INF, -INF, INF, None),
    "ex2": (0.0, 1.0, 1.0, INF, None),
    "tanh": (-1.0, -0.0, 0.0, 1.0, None),
}


def approximations():
    names = [*APPROXIMATE, "div_f", "rcp", "sqrt"]
    return [form for name in names for form in forms_of(name) if is_approximate(form)]


def plain_name(form):
    name = form.name.removesuffix("_half").removesuffix("_f")
    return f"div.{form.mods['mode']}" if name == "div" else name


@pytest.mark.parametrize("form", approximations(), ids=lambda form: form.opcode)
def test_approximations_are_nearly_exact_and_far_within_their_bounds(form):
    name, kind = plain_name(form), form.mods["type"].partition("x")[0]
    number = FORMATS[kind]
    columns = [column[:160] for column in draw(form)]
    results = decode(
        simulated(form, columns)[0].astype(number.carrier), number
    )  # of a packed pair the low element
    operands = [decode(column.astype(number.carrier), number) for column in columns]
    tried = 0
    with localcontext() as context:
        context.prec = 60
        for i, got in enumerate(results):
            values = [float(o[i]) for o in operands]
            bound = bound_of(BOUNDS[name, kind], values[-1])
            outside = bound is None or not all(map(math.isfinite, values)) or values[-1] == 0
            if (
                outside
                or not math.isfinite(got)
                or (name in ("lg2", "sqrt", "rsqrt") and values[0] < 0)
            ):
                continue
            if abs(values[0]) < 2.0**number.least or abs(got) < 2.0**number.least:
                continue  # flushed, or not
            if name == "ex2" and abs(values[0]) > 2000:
                continue
            exact = EXACT[name](*map(Decimal, values))
            half = number.precision
            step = Decimal(2) ** (math.frexp(got)[1] - half)
            assert abs(Decimal(float(got)) - exact) <= step * Decimal("0.5001"), values
            assert error_in_bound(bound, float(got), float(exact), number) < 1
            tried += 1
    assert tried > 20


@pytest.mark.parametrize(
    "form", [f for f in approximations() if plain_name(f) in CORNERS], ids=lambda form: form.opcode
)
def test_corners_of_approximations_are_those_that_ptx_lists(form):
    kind = form.mods["type"].partition("x")[0]
    number = FORMATS[kind]
    count = 2 if form.mods["type"].endswith("x2") else 1
    sign = 1 << number.bits - 1
    infinity = ref.write((0, "inf"), kind)
    corners = [infinity | sign, sign, 0, infinity, number.nan]
    words = np.array(
        [join([c] * count, number.bits) for c in corners], f"uint{number.bits * count}"
    )
    (found,) = simulated(form, [words])
    for got, want in zip(found, CORNERS[plain_name(form)], strict=True):
        for part in split(int(got), f"u{number.bits}x{count}"):
            value = float(decode(np.array([part], number.carrier), number)[0])
            if want is None:
                assert math.isnan(value)
            else:
                assert value == want
                assert math.copysign(1, value) == math.copysign(1, want)


@pytest.mark.parametrize(
    ("b", "a", "want"),
    [
        (2.0**127, 3.0, 0.0),
        (-(2.0**127), 3.0, -0.0),
        (2.0**127, INF, None),
        (2.0**126, 2.0**126, 1.0),
    ],
)
def test_a_fast_division_by_a_huge_number_is_zero(a, b, want):
    (form,) = [f for f in forms_of("div_f") if f.opcode == "div.approx.f32"]
    words = [np.array([x], np.float32).view(np.uint32) for x in (a, b)]
    (found,) = simulated(form, words)
    value = float(found.view(np.float32)[0])
    assert math.isnan(value) if want is None else math.copysign(1, value) == math.copysign(1, want)
    assert want is None or value == want


@pytest.mark.parametrize("name", ["rcp", "rsqrt", "fma_half", "add", "cvt_tf32_f32"])
def test_forms_that_are_not_modelled_say_why(name):
    from tvm.backend.cuda.ptx.table import mods, variants

    reasons = {INSTRUCTIONS[name].refuses(mods(TABLE[name], v)) for v in variants(TABLE[name])}
    assert len(reasons) == 2
    assert "" in reasons
