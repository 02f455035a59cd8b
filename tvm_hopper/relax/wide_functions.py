"""Compute 16-bit functions in float32, rounded once, with stable formulas.

    y = silu(x)    ->    y = float16(silu(float32(x)))

TVM's legalisation computes each step of an activation, a softmax or a norm in the type of the
tensor: silu of float16 is zero below -11.1, gelu of bfloat16 at -3.1.  Here casts are part of the
function, so a kernel reads and writes 16 bits as the model says.  Steps that a model writes out
itself (`x * sigmoid(x)` as two operators) are rounded one by one, as the model says.

Also in float32: group and instance norm sum squared deviations (TVM computes E[x^2] - E[x]^2), and
softplus and log_add_exp neither overflow nor lose small results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import pi, prod, sqrt
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_hopper import ir

from .mutator_passes import mutator_pass

NARROW, WIDE = ("float16", "bfloat16"), "float32"
Function = Callable[..., Any]


@mutator
class _Functions(PyExprMutator):  # type: ignore[misc]
    changed = False

    def visit_call_(self, call: Any) -> Any:
        """Write a call as one function of te, whose results have the types of the call."""
        call = super().visit_call_(call)
        name = str(getattr(call.op, "name", "")).removeprefix("relax.")
        if name not in FUNCTIONS or not _has_tensors(call):
            return call
        dtype = str(call.args[0].ty.dtype)
        if dtype not in NARROW and not (name in OF_FLOAT32 and dtype == WIDE):
            return call
        self.changed = True
        function = FUNCTIONS[name](call.attrs)
        types = [call.ty] if isinstance(call.ty, relax.TensorType) else list(call.ty.fields)

        def wide(*given: Any) -> Any:
            results = function(*(_cast(x, WIDE) for x in given))
            results = [results] if isinstance(results, te.Tensor) else results
            rounded = [_cast(x, str(y.dtype)) for x, y in zip(results, types, strict=True)]
            return rounded if len(rounded) > 1 else rounded[0]

        hint = name.removeprefix("nn.")
        return self.builder_.call_te(wide, *map(_number, call.args), primfunc_name_hint=hint)


WideFunctions = mutator_pass("WideFunctions", _Functions)


def _has_tensors(call: Any) -> bool:
    """Tell a call of tensors of known shapes, all of one type."""
    types = [x.ty for x in call.args]
    known = all(isinstance(x, relax.TensorType) and x.shape is not None for x in types)
    return known and len({str(x.dtype) for x in types}) == 1


def _number(x: Any) -> Any:
    """Return the value of a constant without dimensions, which is part of the function then."""
    if not isinstance(x, tvm.ir.GenericConst) or x.ty.ndim != 0:
        return x
    return tirx.const(float(x.value.numpy()), str(x.ty.dtype))


def _cast(x: Any, dtype: str) -> Any:
    if not isinstance(x, te.Tensor):
        return tirx.const(float(x.value), dtype)
    return x if str(x.dtype) == dtype else topi.cast(x, dtype)


def _elementwise(function: Function) -> Callable[[Any], Function]:
    """Write a function of elements as one te.compute."""
    name = function.__name__.removeprefix("_")

    def of(_attrs: Any) -> Function:
        return lambda x: te.compute(x.shape, lambda *i: function(x[i]), name=name)

    return of


def _f32(number: float) -> Any:
    return tirx.const(number, WIDE)


def _gelu(x: Any) -> Any:
    return _f32(0.5) * x * (_f32(1) + tirx.erf(_f32(sqrt(0.5)) * x))


def _gelu_tanh(x: Any) -> Any:
    inner = _f32(sqrt(2 / pi)) * (x + _f32(0.044715) * x * x * x)
    return _f32(0.5) * x * (_f32(1) + tirx.tanh(inner))


def _silu(x: Any) -> Any:
    return x * tirx.sigmoid(x)


def _selu(x: Any) -> Any:
    half = tirx.tanh(_f32(0.5) * tirx.min(x, _f32(0)))
    exp_less_one = _f32(2) * half / (_f32(1) - half)  # which has digits near zero
    scale, alpha = _f32(1.0507009873554804934), _f32(1.6732632423543772848)
    return scale * tirx.Select(x > _f32(0), x, alpha * exp_less_one)


def _softplus(attrs: Any) -> Function:
    beta, threshold = float(attrs.beta), float(attrs.threshold)

    def of(x: te.Tensor) -> te.Tensor:
        def value(*i: Any) -> Any:
            scaled = _f32(beta) * x[i]
            soft = tirx.log1p(tirx.exp(scaled)) / _f32(beta)
            return tirx.Select(scaled > _f32(threshold), x[i], soft)

        return te.compute(x.shape, value, name="softplus")

    return of


def _log_add_exp(_attrs: Any) -> Function:
    def of(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        top = topi.maximum(x, y)
        distance = topi.abs(topi.subtract(x, y))
        most = _f32(float("inf"))

        def value(*i: Any) -> Any:  # equal infinities have no distance
            soft = top[i] + tirx.log1p(tirx.exp(_f32(0) - distance[i]))
            return tirx.Select(tirx.abs(top[i]).equal(most), top[i], soft)

        return te.compute(top.shape, value, name="log_add_exp")

    return of


def _of_tensors(function: Function) -> Callable[[Any], Function]:
    return lambda _attrs: function


def _floor_mod(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """Correct the remainder of the quotient towards zero, which is exact."""
    rest, zero = topi.mod(x, y), _f32(0)
    is_other = topi.not_equal(topi.less(rest, zero), topi.less(y, zero))
    wrong = topi.logical_and(topi.not_equal(rest, zero), is_other)
    return topi.where(wrong, topi.add(rest, y), rest)


def _of_attrs(function: Function, **names: str) -> Callable[[Any], Function]:
    """Call a function with attributes of the call: its parameters, by their names in there."""

    def of(attrs: Any) -> Function:
        given = {name: getattr(attrs, attr) for name, attr in names.items()}
        return lambda *x: function(*x, **given)

    return of


def _mean(x: te.Tensor, axis: Any, keepdims: bool) -> te.Tensor:
    whole = [int(i) for i in (range(len(x.shape)) if axis is None else axis)]
    return topi.divide(topi.sum(x, whole, keepdims), _count(x.shape[i] for i in whole))


def _count(extents: Iterable[Any]) -> Any:
    return ir.simplify(prod((tirx.Cast(WIDE, x) for x in extents), start=_f32(1)))


def _variance(x: te.Tensor, axis: Any, keepdims: bool) -> te.Tensor:
    deviation = topi.subtract(x, _mean(x, axis, True))
    return _mean(topi.multiply(deviation, deviation), axis, keepdims)


def _std(x: te.Tensor, axis: Any, keepdims: bool) -> te.Tensor:
    return topi.sqrt(_variance(x, axis, keepdims))


def _norm(attrs: Any) -> Function:
    """Sum squares around the mean of each group of channels; without groups, of each channel."""

    def of(x: te.Tensor, w: te.Tensor, b: te.Tensor) -> te.Tensor:
        channel = int(attrs.channel_axis) % len(x.shape)
        axes = [int(i) % len(x.shape) for i in attrs.axes]
        rows = [i for i in range(len(x.shape)) if i not in axes]
        size = x.shape[channel] // int(attrs.num_groups) if hasattr(attrs, "num_groups") else 1
        shape = [x.shape[i] // size if i == channel else x.shape[i] for i in rows]
        inner = {i: size if i == channel else x.shape[i] for i in axes}
        if hasattr(attrs, "num_groups"):
            inner[channel] = size
        count = _count(inner.values())

        def total(value: Function, name: str) -> te.Tensor:
            ks = {i: te.reduce_axis((0, inner[i]), name=f"k{i}") for i in sorted(inner)}

            def of_row(*row: Any) -> Any:
                first = {i: n * size if i == channel else n for i, n in zip(rows, row, strict=True)}
                place = [first.get(i, 0) + ks.get(i, 0) for i in range(len(x.shape))]
                return te.sum(value(row, x[tuple(place)]), axis=list(ks.values()))

            return te.compute(shape, of_row, name=name)

        sums = total(lambda _row, v: v, "sum")
        mean = te.compute(shape, lambda *row: sums[row] / count, name="mean")
        squares = total(lambda row, v: (v - mean[row]) * (v - mean[row]), "squares")

        def value(*i: Any) -> Any:
            row = tuple(i[a] // size if a == channel else i[a] for a in rows)
            scale = tirx.rsqrt(squares[row] / count + _f32(float(attrs.epsilon)))
            return (x[i] - mean[row]) * scale * w[i[channel]] + b[i[channel]]

        return te.compute(x.shape, value, name="norm")

    return of


_ALONG = {"axis": "axis", "keepdims": "keepdims"}
_BATCH = ("axis", "epsilon", "center", "scale", "training", "momentum")
OF_FLOAT32 = ("nn.group_norm", "nn.instance_norm", "nn.softplus", "log_add_exp")
FUNCTIONS: dict[str, Callable[[Any], Function]] = {
    "sigmoid": _elementwise(tirx.sigmoid),
    "nn.silu": _elementwise(_silu),
    "nn.gelu": _elementwise(_gelu),
    "nn.gelu_tanh": _elementwise(_gelu_tanh),
    "nn.selu": _elementwise(_selu),
    "nn.softplus": _softplus,
    "log_add_exp": _log_add_exp,
    "power": _of_tensors(topi.power),
    "floor_divide": _of_tensors(topi.floor_divide),
    "floor_mod": _of_tensors(_floor_mod),
    "isnan": _of_tensors(topi.isnan),
    "isinf": _of_tensors(topi.isinf),
    "isfinite": _of_tensors(topi.isfinite),
    "nn.softmax": _of_attrs(topi.nn.softmax, axis="axis"),
    "nn.log_softmax": _of_attrs(topi.nn.log_softmax, axis="axis"),
    "nn.layer_norm": _of_attrs(topi.nn.layer_norm, axis="axes", epsilon="epsilon"),
    "nn.group_norm": _norm,
    "nn.instance_norm": _norm,
    "nn.batch_norm": _of_attrs(topi.nn.batch_norm, **dict(zip(_BATCH, _BATCH, strict=True))),
    "mean": _of_attrs(_mean, **_ALONG),
    "variance": _of_attrs(_variance, **_ALONG),
    "std": _of_attrs(_std, **_ALONG),
}
"""What each operator computes in float32, by its attributes."""
