"""How large the values of a call in plain loops can be, for who stores them in fewer bits.

A value is counted by its degree, as a physical unit: of activations x has degree 1, x * x has 2,
rsqrt(mean(x * x)) has -1, and a normalised row, a weight of softmax or a sine 0.  What 16 bits hold
has a degree from 0 to 1 and a factor near one; what is unknown (exponentials, integers, what no
product made) counts as more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import tvm_ffi
from tvm import tirx
from tvm.tirx import IterVar

from tvm_hopper import ir

HALVES = ("float16", "bfloat16")
FACTOR = 64.0  # of an activation
BOUND = 1024.0  # of a number: float16 holds its halves
EXPONENTIALS = ("exp", "exp2")
_BOUNDED = ("sigmoid", "tanh", "erf", "sin", "cos")  # by one
_SAME = ("fabs", "floor", "ceil", "round", "nearbyint", "trunc")


class Range(NamedTuple):
    """Values up to `factor * activation ** degree`.

    - `is_fixed` (bool): made of constants, vectors of weights and sums of rows, a divisor.
    - `is_positive` (bool): so that a sum of them is no smaller than they are.
    - `has_table` (bool): a weight of several dimensions is added, as places, or a mask.
    """

    degree: float
    factor: float = 1.0
    is_fixed: bool = False
    is_positive: bool = False
    has_table: bool = False

    @property
    def is_held(self) -> bool:
        """Tell what 16 bits hold, if activations."""
        most = FACTOR if self.degree > 0 else BOUND
        return 0 <= self.degree <= 1 and 1 / FACTOR <= self.factor <= most


ACTIVATION, VECTOR = Range(1), Range(0, is_fixed=True, is_positive=True)
UNKNOWN, OF_FUNCTION = Range(3.25), Range(5.625)  # unlike each other, so that neither cancels
TABLE = Range(1, has_table=True)


def constant(value: float) -> Range:
    """Return the range of a number: one that 16 bits lack is as what is not known."""
    if value == 0 or math.isinf(value):  # they have these
        return Range(0, 0.0, is_fixed=True)
    return Range(0, abs(value), True, value > 0) if abs(value) < math.inf else UNKNOWN


def output_ranges(func: tirx.PrimFunc, given: list[Range]) -> list[Range]:
    """Return the ranges of a function's outputs.

    - `func`: in plain loops, its outputs behind its inputs.
    - `given`: of its inputs.
    """
    read = dict(zip(func.params, given, strict=False))
    values = _Values(func, read)
    return [values.of_buffer(x) for x in list(func.params)[len(given) :]]


class _Values:
    """Ranges of one function's buffers and expressions."""

    def __init__(self, func: tirx.PrimFunc, known: Mapping[Any, Range]) -> None:
        self.known = dict(known)
        self.bound = {x.var: x.value for x in ir.find_all(func.body, tirx.Bind)}
        self.stores: dict[Any, list[tuple[Any, float]]] = {}  # with numbers of terms
        for block in ir.find_all(func.body, ir.SBlock):
            if ir.find_all(block.body, ir.SBlock):
                continue
            terms = [x.dom.extent for x in block.iter_vars if x.iter_type == IterVar.CommReduce]
            extents = [ir.static_int(n) for n in terms]
            count = math.inf if None in extents else float(math.prod(n or 1 for n in extents))
            for store in ir.find_all(block.body, ir.BufferStore):
                self.stores.setdefault(store.buffer, []).append((store, count))

    def of_buffer(self, buffer: Any) -> Range:
        """Return the range of what is stored."""
        if buffer not in self.known:
            self.known[buffer] = UNKNOWN  # where it is read for itself
            found = [self._stored(*x) for x in self.stores.get(buffer, [])]
            one = found[0] if found else UNKNOWN
            self.known[buffer] = _sum(*found) if len(found) > 1 else one
        return self.known[buffer]

    def _stored(self, store: Any, count: float) -> Range:
        term = self._term(store)
        value = self.bound.get(store.value, store.value)
        if term is None:
            return self.of(value)
        if isinstance(value, tirx.Add):
            return self._summed(term, count)
        return self.of(term)._replace(is_fixed=True)

    def _term(self, store: Any) -> Any:
        """Return what a reduction adds to an element, or compares it with, else None."""
        value = self.bound.get(store.value, store.value)
        if isinstance(value, (tirx.Add, tirx.Max, tirx.Min)):
            for own, term in ((value.a, value.b), (value.b, value.a)):
                if isinstance(own, ir.TensorLoad) and own.source == store.buffer:
                    is_same = tvm_ffi.structural_equal(list(own.indices), list(store.indices))
                    return term if is_same else None
        return None

    def _summed(self, term: Any, count: float) -> Range:
        if isinstance(term, tirx.Mul):
            a, b = (x.value if isinstance(x, tirx.Cast) else x for x in (term.a, term.b))
            halves = [isinstance(x, ir.TensorLoad) and ir.dtype_of(x) in HALVES for x in (a, b)]
            if all(halves) and not tvm_ffi.structural_equal(a, b):
                return ACTIVATION  # a product
        found = self.of(term)
        return found._replace(factor=found.factor * count, is_fixed=True)

    def of(self, value: Any) -> Range:
        """Return the range of an expression."""
        value = self.bound.get(value, value) if isinstance(value, ir.Var) else value
        if isinstance(value, ir.TensorLoad):
            found = self.of_buffer(value.source)
            is_half = ir.dtype_of(value) in HALVES
            return ACTIVATION if is_half and not found.is_held else found
        if isinstance(value, (tirx.FloatImm, tirx.IntImm)):
            return constant(float(value.value))
        if isinstance(value, tirx.Cast):
            return self._cast(value)
        if isinstance(value, (tirx.Add, tirx.Sub, tirx.Max, tirx.Min)):
            found = _sum(self.of(value.a), self.of(value.b))
            return found._replace(is_positive=False) if isinstance(value, tirx.Sub) else found
        if isinstance(value, tirx.Select):
            return _sum(self.of(value.true_value), self.of(value.false_value))
        if isinstance(value, tirx.Mul):
            found = _product(self.of(value.a), self.of(value.b))
            is_square = tvm_ffi.structural_equal(value.a, value.b)
            return found._replace(is_positive=found.is_positive or is_square)
        if isinstance(value, tirx.Div):
            return self._quotient(value)
        return self._called(value) if isinstance(value, ir.Call) else UNKNOWN

    def _cast(self, value: Any) -> Range:
        dtype = ir.dtype_of(value.value)
        if dtype == "bool":
            return Range(0)
        return self.of(value.value) if "float" in dtype else UNKNOWN

    def _quotient(self, value: Any) -> Range:
        a, b = self.of(value.a), self.of(value.b)
        if isinstance(value.b, tirx.FloatImm) and b.factor:
            return a._replace(
                factor=a.factor / b.factor, is_positive=a.is_positive and b.is_positive
            )
        if not (b.is_fixed and b.is_positive and b.factor):
            return OF_FUNCTION
        if b.degree <= 0:
            return a._replace(factor=a.factor / min(b.factor, 1.0))  # no smaller than its parts
        is_positive = a.is_positive
        return Range(a.degree - b.degree, a.factor / b.factor, a.is_fixed, is_positive)

    def _called(self, call: Any) -> Range:
        name = str(getattr(call.op, "name", "")).rpartition(".")[2]
        if name in _BOUNDED or (name in EXPONENTIALS and self._is_below_top(call.args[0])):
            return Range(0, is_positive=name in (*EXPONENTIALS, "sigmoid"))
        if name == "if_then_else":
            return _sum(self.of(call.args[1]), self.of(call.args[2]))
        if name in _SAME:
            return self.of(call.args[0])._replace(is_positive=name == "fabs")
        if name == "log":
            return Range(0, 128.0)
        power = {"sqrt": 0.5, "rsqrt": -0.5}.get(name)
        if name == "pow" and isinstance(call.args[1], tirx.FloatImm):
            power = float(call.args[1].value)
        if power is None or abs(power) > 4:
            return OF_FUNCTION._replace(is_positive=name in EXPONENTIALS)
        x = self.of(call.args[0])
        if not 1e-60 < x.factor < 1e60 or (power < 0 and not x.is_fixed):
            return OF_FUNCTION
        factor = 1.0 if power < 0 and x.degree == 0 else x.factor**power
        is_positive = x.is_positive or power % 2 != 1
        return Range(x.degree * power, factor, x.is_fixed, is_positive)

    def _is_below_top(self, value: Any) -> bool:
        """Tell what is a row's element less the row's largest, so no exponential exceeds one."""
        value = self.bound.get(value, value) if isinstance(value, ir.Var) else value
        if isinstance(value, tirx.Mul):
            scales = [x for x in (value.a, value.b) if isinstance(x, tirx.FloatImm)]
            others = [x for x in (value.a, value.b) if not isinstance(x, tirx.FloatImm)]
            is_one = len(others) == 1 and float(scales[0].value) > 0
            return is_one and self._is_below_top(others[0])
        if isinstance(value, ir.TensorLoad):
            stores = self.stores.get(value.source, [])
            return len(stores) == 1 and self._is_below_top(stores[0][0].value)
        if not isinstance(value, tirx.Sub) or not isinstance(value.b, ir.TensorLoad):
            return False
        largest = [x for x, _ in self.stores.get(value.b.source, [])]
        of_max = [isinstance(self.bound.get(x.value, x.value), tirx.Max) for x in largest]
        terms = [self._term(x) for x in largest]
        source = getattr(value.a, "source", None)
        return of_max == [True] and source is not None and getattr(terms[0], "source", 0) == source


def _sum(*terms: Range) -> Range:
    """Return the range of a sum, or of one of several."""
    degrees = [x.degree for x in terms]
    degree = min(degrees) if min(degrees) < 0 else max(degrees)
    if any(x.degree == 0 and x.factor > BOUND for x in terms):
        degree = max(degree, UNKNOWN.degree)  # a mask's number
    return Range(
        degree,
        max(x.factor for x in terms if x.degree == degree) if degree in degrees else 1.0,
        all(x.is_fixed for x in terms),
        all(x.is_positive for x in terms),
        has_table=any(x.has_table for x in terms),
    )


def _product(a: Range, b: Range) -> Range:
    has_table = min(a.degree, b.degree) >= 0 and (a.has_table or b.has_table)
    return Range(
        a.degree + b.degree,
        a.factor * b.factor,
        a.is_fixed and b.is_fixed,
        a.is_positive and b.is_positive,
        has_table,
    )
