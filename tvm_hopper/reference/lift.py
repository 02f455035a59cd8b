"""Lift an expression to float64, with a bound of its rounding error.

    C[i] + Cast("float32", a)      ->      value = C + a
                                           error = error(C) + error(a) + u |value|

The value is what the program computes with exact intermediate results; conversions that it writes
down (`T.Cast`) round as it says. The error bounds, to first order, how far a kernel may be from
that which computes the same expression in its own types: each operation that is not exact adds
half a unit in its last place, u |value| with u = 2 ** -precision; operations pass on the errors
of what they are given (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1 and
3.3). An error that is zero says that every kernel gets this value, bit for bit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.script import tirx as T

from tvm_hopper.facts.dtypes import DTYPES

from .functions import DISCRETE, EXACT_CALLS, FUNCTIONS, INTEGER_CALLS
from .plain import PlainProgramError, dtype_of, nodes_in, op_name, variables
from .rounding import F64, FORMATS, MANTISSA, const, magnitude, round_to


@dataclass(frozen=True)
class Number:
    """A lifted expression.

    - `value` (Expr): float64 for what the program has as a float, else of the program's own type.
    - `error` (Expr or None): float64 (of a condition: whether it may turn out the other way); None:
      none whatever.
    - `bits`: significant bits that a float takes at most.
    - `from_memory`: of a name: whether its value depends on what memory holds.
    """

    value: Any
    error: Any
    dtype: str
    bits: int = 53
    from_memory: bool = False

    @property
    def is_float(self) -> bool:
        """Tell whether the program has a float here."""
        return self.dtype in FORMATS


def _if_numbers(extreme: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Return NaN if one of two is none, as our kernels do; LLVM's takes the other one."""
    return tirx.Select(tirx.Or(T.isnan(a), T.isnan(b)), a + b, extreme(a, b))


Load = Callable[[Any, list[Any], bool], Number]
FLOAT_OPS: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Div: lambda a, b: a / b,
    tirx.Min: lambda a, b: _if_numbers(T.min, a, b),
    tirx.Max: lambda a, b: _if_numbers(T.max, a, b),
}
SECOND_ORDER = 2.0  # errors are of first order: so many times one has to be expected
MOST_DIVISOR = (
    2.0**125
)  # from there on 1/x may be zero in float32 (transforms/math/approximate_functions_plan.py)
TF32_FRACTION = 10  # bits; PTX ISA 9.1, 5.2.3
TF32_QUANTUM = 2.0**-136  # the smallest positive number: float32's, 13 bits higher
DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


class Lifter:
    """Lifts the expressions of one statement.

    - `load`: gives the element of a buffer: `load(buffer, indices, clamped)`, lifted.
    - `bind` (callable): gives an expression a name before the statement.
    - `names` (dict): variables that have been lifted already.
    - `where`: the statement, for messages.
    - `check` (callable): notes a load that a condition leads outside of a tensor: `check(condition,
      load, axis, index)`.
    """

    def __init__(
        self,
        load: Load,
        bind: Callable[[Any], Any],
        names: Mapping[Any, Number],
        where: str,
        check: Callable[[Any, Any, int, Any], None] | None = None,
    ) -> None:
        self.load, self.bind, self.names, self.where = load, bind, dict(names), where
        self.check = check
        self.clamped = 0  # inside of what a condition chooses: indices may lie outside
        self.guards: list[Any] = []  # these conditions, as far as they are known
        self.cuts_factors = False  # whether a kernel multiplies float32 as tf32
        self.moves_roundings = False  # whether it rounds to 16 bits at another scale

    def lift(self, expr: Any) -> Number:
        """Lift one expression."""
        if isinstance(expr, tirx.FloatImm):
            return self._constant(float(expr.value), dtype_of(expr))
        if isinstance(expr, (tirx.IntImm, int)):
            dtype = dtype_of(expr) if isinstance(expr, tirx.IntImm) else "int32"
            return Number(expr, None, dtype)
        if isinstance(expr, ir.Var):
            return self.names.get(expr) or Number(expr, None, dtype_of(expr))
        if isinstance(expr, ir.TensorLoad):
            return self._element(expr)
        if isinstance(expr, tirx.Cast):
            return self._cast(self.lift(expr.value), dtype_of(expr))
        if isinstance(expr, tirx.Let):
            found = self.lift(expr.value)
            self.names[expr.var] = replace(found, from_memory=self.reads_memory(expr.value))
            return self.lift(expr.body)
        if isinstance(expr, tirx.Select):
            return self._choose(expr.condition, expr.true_value, expr.false_value)
        if isinstance(expr, ir.Call):
            return self._call(expr)
        if isinstance(expr, tirx.Not):
            inner = self.lift(expr.a)
            return Number(tirx.Not(inner.value), inner.error, "bool")
        if isinstance(expr, tirx.BitwiseNot):
            inner = self.lift(expr.a)
            return Number(tirx.BitwiseNot(inner.value), self._unknown(inner.error), inner.dtype)
        if hasattr(expr, "a") and hasattr(expr, "b"):
            return self._binary(expr)
        raise self.refuse(f"the expression {type(expr).__name__}")

    def index(self, expr: Any) -> Any:
        """Lift an integer expression that rounding must not touch: an index, an extent."""
        found = self.lift(expr)
        if found.error is not None or found.is_float:
            raise self.refuse(f"{expr}, which depends on rounded values,")
        return found.value

    def _element(self, load: Any) -> Number:
        """Lift a load; an index that follows from memory is kept inside of the tensor."""
        indices = [self.index(i) for i in load.indices]
        from_memory = [axis for axis, x in enumerate(load.indices) if self.reads_memory(x)]
        if self.check is not None and len(self.guards) == self.clamped:
            for axis in from_memory:
                size = self.index(load.source.shape[axis])
                outside = tirx.Or(indices[axis] < 0, indices[axis] >= size)
                for guard in reversed(self.guards):
                    outside = tirx.And(guard, outside)
                self.check(outside, load, axis, indices[axis])
        return self.load(load.source, indices, self.clamped > 0 or bool(from_memory))

    def reads_memory(self, expr: Any) -> bool:
        """Tell whether an expression depends on what memory holds."""
        known = map(self.names.get, variables(expr))
        loads = nodes_in(ir.TensorLoad, expr)
        return bool(loads) or any(x is not None and x.from_memory for x in known)

    def _guarded(self, condition: Any, expr: Any) -> Number:
        """Lift what is chosen if a condition holds."""
        self.clamped += 1
        self.guards.append(condition)
        found = self.lift(expr)
        self.guards.pop()
        self.clamped -= 1
        return found

    def refuse(self, what: str) -> PlainProgramError:
        """Make the error of something that cannot be evaluated."""
        return PlainProgramError(
            f"against: {self.where}: found {what}; need an expression whose value and rounding "
            "error are known"
        )

    # -- leaves -----------------------------------------------------------------------------------

    def _constant(self, value: float, dtype: str) -> Number:
        with np.errstate(over="ignore"):  # TVM's least bfloat16 is float32's, beyond all of its own
            value = float(np.asarray(value).astype(DTYPES[dtype].numpy))
        if not math.isfinite(value):
            return Number(const(value), None, dtype, 1)
        significand = int(abs(value).hex().split(".")[1].split("p")[0] or "0", 16) if value else 0
        bits = 53 - (significand & -significand).bit_length() + 1 if significand else 1
        return Number(const(value), None, dtype, min(bits, FORMATS[dtype].precision))

    # -- operations -------------------------------------------------------------------------------

    def _binary(self, expr: Any) -> Number:
        kind = type(expr)
        if kind in (tirx.And, tirx.Or):
            a = self.lift(expr.a)
            b = self._guarded(a.value if kind is tirx.And else tirx.Not(a.value), expr.b)
            return Number(kind(a.value, b.value), _joined(tirx.Or, a.error, b.error), "bool")
        a, b = self.lift(expr.a), self.lift(expr.b)
        if kind is tirx.Mul and self.cuts_factors and a.dtype == "float32":
            a, b = self._as_tf32(a), self._as_tf32(b)
        if kind in COMPARISONS:
            return self._compare(kind, a, b)
        if not a.is_float:
            if kind in DIVISIONS and nodes_in(ir.TensorLoad, expr.b):
                return self._quotient_of_integers(kind, a, b)
            return self._integer(kind, a, b)
        if kind not in FLOAT_OPS:
            raise self.refuse(f"the float operation {kind.__name__}")
        value = self.bind(FLOAT_OPS[kind](a.value, b.value))
        bits = FORMATS[a.dtype].precision
        if kind in (tirx.Min, tirx.Max):
            return Number(value, largest(a.error, b.error), a.dtype, max(a.bits, b.bits))
        if kind is tirx.Mul:
            bits = min(b.bits if a.bits == 1 else a.bits if b.bits == 1 else a.bits + b.bits, bits)
            exact = 1 in (a.bits, b.bits) or a.bits + b.bits <= FORMATS[a.dtype].precision
            exact &= a.dtype != "float16"  # of which products soon are too small for all their bits
            passed = _of_product(a, b)
        elif kind is tirx.Div:
            exact, passed = False, self._of_quotient(value, a, b)
        else:
            exact, passed = False, plus(a.error, b.error)
        own = None if exact else self.rounding(value, a.dtype, passed)
        return Number(value, self._name(plus(passed, own)), a.dtype, bits)

    def _as_tf32(self, a: Number) -> Number:
        """Add what a tensor core leaves out of a float32: all but 10 bits of its fraction."""
        bits = T.reinterpret("int64", a.value)
        kept = T.bitwise_and(bits, tirx.const(-(1 << (MANTISSA - TF32_FRACTION)), "int64"))
        lost = magnitude(a.value) * const(2.0**-TF32_FRACTION) + const(TF32_QUANTUM)
        own = tirx.Select(kept == bits, const(0), lost)
        return replace(a, error=self._name(plus(a.error, own)))

    def rounding(self, value: Any, dtype: str, passed: Any) -> Any:
        """Return how much the rounding of a result may change it.

        Nothing if it is a number of the type: but only one of exact operands is known to be what
        a kernel rounds. `passed` is how far the operands' errors may move the result.
        """
        fmt = FORMATS[dtype]
        if dtype == F64:  # the value itself is rounded here; integers are exact
            exact = tirx.And(T.floor(value) == value, magnitude(value) < const(2.0**53))
            half = magnitude(value) * const(2 * fmt.roundoff)
        else:
            exact = round_to(value, dtype, self.bind) == value
            half = magnitude(value) * const(fmt.roundoff) + const(fmt.quantum / 2)
        if passed is not None:
            exact = tirx.And(exact, self.bind(passed) == const(0))
        return tirx.Select(exact, const(0), half)

    def _of_quotient(self, value: Any, a: Number, b: Number) -> Any:
        if b.error is None:
            return None if a.error is None else a.error / magnitude(b.value)
        least = magnitude(b.value) - b.error
        top = plus(a.error, magnitude(value) * b.error)
        error = tirx.Select(least > const(0), top / least, const(float("inf")))
        # One over what is as large is zero to a kernel: x / (1 + exp(100)). The chip's reciprocal
        # has no subnormal results.
        most = MOST_DIVISOR if b.dtype == "float32" else FORMATS[b.dtype].largest
        lost = magnitude(b.value) + b.error >= const(most)
        return largest(error, tirx.Select(lost, magnitude(value), const(0)))

    def _integer(self, kind: type, a: Number, b: Number) -> Number:
        value = kind(a.value, b.value)
        if a.error is None and b.error is None:
            return Number(value, None, a.dtype)
        if kind in (tirx.Add, tirx.Sub):
            error = plus(a.error, b.error)
        elif kind in (tirx.Min, tirx.Max):
            error = largest(a.error, b.error)
        elif kind is tirx.Mul:
            error = _of_product(_as_float(a), _as_float(b))
        else:
            error = self._unknown(plus(a.error, b.error))
        return Number(self.bind(value), self._name(error), a.dtype)

    def _quotient_of_integers(self, kind: type, a: Number, b: Number) -> Number:
        """Divide by an integer of memory: by zero a processor stops, and a GPU has any number."""
        value = self.bind(b.value)
        zero = value == tirx.const(0, b.dtype)
        divisor = Number(tirx.Select(zero, tirx.const(1, b.dtype), value), b.error, b.dtype)
        found = self._integer(kind, a, divisor)
        lost = tirx.Select(zero, const(float("inf")), _or_zero(found.error))
        return Number(self.bind(found.value), self._name(lost), a.dtype)

    def _compare(self, kind: type, a: Number, b: Number) -> Number:
        error = plus(a.error, b.error)
        if error is not None:
            error = self.bind(error)
            gap = magnitude(_as_float(a).value - _as_float(b).value)
            error = self.bind(tirx.And(error > const(0), gap <= error))
        return Number(kind(a.value, b.value), error, "bool")

    def _choose(self, condition: Any, one: Any, other: Any) -> Number:
        test = self.lift(condition)
        a = self._guarded(test.value, one)
        b = self._guarded(tirx.Not(test.value), other)
        value = self.bind(tirx.Select(test.value, a.value, b.value))
        error = None
        if a.dtype == "bool":  # errors of conditions say whether they may turn out the other way
            if a.error is not None or b.error is not None:
                either = [tirx.const(False, "bool") if x is None else x for x in (a.error, b.error)]
                error = tirx.Select(test.value, *either)
            return Number(value, self._name(_joined(tirx.Or, error, test.error)), "bool")
        if a.error is not None or b.error is not None:
            error = tirx.Select(test.value, _or_zero(a.error), _or_zero(b.error))
        if test.error is not None:
            gap = magnitude(_as_float(a).value - _as_float(b).value)
            most = plus(gap, largest(a.error, b.error))
            error = tirx.Select(test.error, most, _or_zero(error))
        return Number(value, self._name(error), a.dtype, max(a.bits, b.bits))

    def _cast(self, a: Number, dtype: str) -> Number:
        if dtype == a.dtype:
            return a
        if dtype not in FORMATS:
            return self._to_integer(a, dtype)
        fmt = FORMATS[dtype]
        if not a.is_float:
            value = tirx.Cast(F64, a.value)
            if a.dtype == "bool" and a.error is not None:
                return Number(value, tirx.Select(a.error, const(1), const(0)), dtype)
            if _integer_bits(a.dtype) <= fmt.precision:
                return Number(value, a.error, dtype, _integer_bits(a.dtype))
            rounded = round_to(value, dtype, self.bind)
        elif a.bits <= fmt.precision and _holds(fmt, FORMATS[a.dtype]):
            return Number(a.value, a.error, dtype, a.bits)
        else:
            rounded = round_to(a.value, dtype, self.bind)
        error: Any = None
        if a.error is not None:  # what is near may be rounded the other way, or to the same
            around = self.bind(a.error * const(SECOND_ORDER))
            middle = _as_float(a).value
            ends = [
                round_to(self.bind(x), dtype, self.bind) for x in (middle - around, middle + around)
            ]
            error = largest(*(magnitude(end - rounded) for end in ends))
            error = tirx.Select(around > const(0), error, const(0))  # of an infinity, too
            if self.moves_roundings and fmt.precision < FORMATS["float32"].precision:
                # each rounding is half a unit, of normal numbers or of subnormal ones; two of them
                # are what SECOND_ORDER makes of one
                unit = const(fmt.roundoff) * magnitude(rounded)
                error = error + unit + const(fmt.quantum)
        return Number(rounded, self._name(error), dtype, fmt.precision)

    def _to_integer(self, a: Number, dtype: str) -> Number:
        if dtype == "bool":
            zero = const(0) if a.is_float else tirx.const(0, a.dtype)
            return self._compare(tirx.NE, a, Number(zero, None, a.dtype))
        error = a.error
        if a.dtype == "bool" and error is not None:
            error = tirx.Select(error, const(1), const(0))
        elif error is not None and a.is_float:
            error = tirx.Select(error > const(0), error + const(1), const(0))
        return Number(self.bind(tirx.Cast(dtype, a.value)), self._name(error), dtype)

    # -- calls ------------------------------------------------------------------------------------

    def _call(self, call: Any) -> Number:
        name, dtype = op_name(call), dtype_of(call)
        if name == "if_then_else":
            return self._choose(*call.args)
        if name in ("likely", "assume"):
            return self.lift(call.args[0])
        if name not in FUNCTIONS and name not in INTEGER_CALLS and name not in DISCRETE:
            raise self.refuse(f"a call of {name}")
        args = [self.lift(x) for x in call.args]
        if name in DISCRETE and args[0].is_float:
            return Number(DISCRETE[name](args[0].value), None, "bool")
        if name in FUNCTIONS and dtype in FORMATS and all(x.is_float for x in args):
            return self._function(name, args, dtype)
        if name in INTEGER_CALLS and dtype not in FORMATS:
            value = INTEGER_CALLS[name](*(x.value for x in args))
            errors = None
            for arg in args:
                errors = plus(errors, arg.error)
            return Number(value, self._unknown(errors), dtype)
        raise self.refuse(f"a call of {name}")

    def _function(self, name: str, args: list[Number], dtype: str) -> Number:
        """Evaluate a function that is monotone in each argument, at the ends of their errors."""
        function = FUNCTIONS[name]
        value = self.bind(function.compute(*(x.value for x in args)))
        error: Any = None
        if any(x.error is not None for x in args):
            ends: list[list[Any]] = [[]]
            for x in args:
                low, high = x.value, x.value
                if x.error is not None:
                    low, high = x.value - x.error, x.value + x.error
                    if function.least is not None:
                        low = T.max(low, const(function.least))
                sides = [high] if x.error is None else [low, high]
                ends = [[*end, self.bind(side)] for end in ends for side in sides]
            for end in ends:
                error = largest(error, magnitude(function.compute(*end) - value))
            if function.slope is not None:
                error = args[0].error * const(function.slope)
            if function.passed is not None:
                errors = [_or_zero(x.error) for x in args]
                error = function.passed(value, [x.value for x in args], errors)
        if name in EXACT_CALLS:
            return Number(value, self._name(error), dtype, args[0].bits)
        fmt = FORMATS[dtype]
        if function.ulps:
            ulp = const(2 * fmt.roundoff * function.ulps)
            # what is below the normal numbers may be lost on the way: 1 / (1 + exp(100))
            own: Any = magnitude(value) * ulp + const(fmt.smallest_normal)
        else:
            own = self.rounding(value, dtype, error)
        return Number(value, self._name(plus(error, own)), dtype, fmt.precision)

    def _unknown(self, error: Any) -> Any:
        """Return the error of a result that says nothing where an argument has one."""
        if error is None:
            return None
        return tirx.Select(error > const(0), const(float("inf")), const(0))

    def _name(self, error: Any) -> Any:
        return None if error is None else self.bind(error)


def _joined(join: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Join two errors, of which None is none."""
    if a is None or b is None:
        return b if a is None else a
    return join(a, b)


def plus(a: Any, b: Any) -> Any:
    """Add two errors, of which None is none."""
    return _joined(operator.add, a, b)


def largest(a: Any, b: Any) -> Any:
    """Return the larger one of two errors, of which None is none."""
    return _joined(T.max, a, b)


def _or_zero(error: Any) -> Any:
    return const(0) if error is None else error


def _as_float(a: Number) -> Number:
    return a if a.is_float else Number(tirx.Cast(F64, a.value), a.error, F64)


def _of_product(a: Number, b: Number) -> Any:
    error = None
    for one, other in ((a, b), (b, a)):
        if one.error is not None:
            error = plus(error, one.error * magnitude(other.value))
    if a.error is not None and b.error is not None:
        error = plus(error, a.error * b.error)
    return error


def _integer_bits(dtype: str) -> int:
    digits = "".join(x for x in dtype if x.isdigit())
    return 1 if dtype == "bool" else int(digits) - dtype.startswith("int")


def _holds(wide: Any, narrow: Any) -> bool:
    """Tell whether a format has the range of another one: then fewer bits are no rounding."""
    return bool(wide.largest >= narrow.largest and wide.quantum <= narrow.quantum)
