"""Memory-bound programs drawn from a seed, as graphs of operators.

    elementwise    a quarter   graphs of operators with broadcasts
    row_reduction  35%         reductions of rows and what surrounds them
    other_axes     15%         reductions over rows, a middle axis, pixels; norms of heads
    layout         a quarter   transposes, concatenations, parts, padding, gathers

Sizes are those of decode steps (a few hundred kilobytes) to half a gigabyte; rows are as long as in
models, multiples of 8, or odd. torch.compile fuses each into one kernel, or two where a reduction
needs it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HIDDEN = (
    *(64, 128, 256, 320, 640, 768, 896, 1024, 1152, 1280, 1536, 1600, 2048, 2304, 2560, 3072),
    *(3584, 4096, 5120, 6144, 7168, 8192, 11008, 14336),
)
VOCABULARY = (32000, 32064, 50257, 50264, 51865, 65024, 100277, 128256, 151936)
FLOATS = ("bfloat16", "bfloat16", "float16", "float16", "float32")
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "bool": 1, "int32": 4, "int64": 8}
UNARY = (
    *(("relu",), ("gelu",), ("gelu_tanh",), ("silu",), ("sigmoid",), ("tanh",), ("abs",)),
    *(("neg",), ("square",), ("scale", 0.703125), ("shift", 1.0), ("clip",)),
)
BINARY = ("add", "add", "sub", "mul", "mul", "maximum", "minimum")


@dataclass(frozen=True)
class Step:
    """One operator: its result's name, the names of its operands, its attributes."""

    name: str
    op: str
    operands: tuple[str, ...]
    attrs: dict[str, Any]


@dataclass
class Problem:
    """A program.

    Attributes
    ----------
    name : str
        Seed, number, kind, operators and the first input's shape and type.
    inputs : list of tuple
        Shape, type and kind of values: "normal", "mask", "int8" or "index:N".
    steps : list of Step
        In order.
    outputs : list of str
        Names of inputs or steps.
    """

    name: str
    inputs: list[tuple[tuple[int, ...], str, str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Kind of the program, see the module."""
        return self.name.split()[1]

    def take(self, shape: tuple[int, ...], dtype: str, kind: str = "normal") -> str:
        """Add an input; return its name."""
        self.inputs.append((tuple(shape), dtype, kind))
        return f"x{len(self.inputs) - 1}"

    def do(self, op: str, *operands: str, **attrs: Any) -> str:
        """Add a step; return its name."""
        self.steps.append(Step(f"t{len(self.steps)}", op, operands, attrs))
        return self.steps[-1].name

    def num_bytes(self, output_bytes: int) -> int:
        """Return the bytes to move: inputs once, of a gathered table only the rows that are read.

        Parameters
        ----------
        output_bytes : int
            Bytes of the outputs.
        """
        total = output_bytes + sum(BYTES[d] * math.prod(s) for s, d, _ in self.inputs)
        for (index, _, kind), (table, dtype, _) in zip(self.inputs, self.inputs[1:], strict=False):
            if kind.startswith("index"):
                total += BYTES[dtype] * (index[0] * table[1] - math.prod(table))
        return total


def population(seed: int, count: int) -> list[Problem]:
    """Return `count` programs; a longer list of one seed begins like a shorter one."""
    source, found = random.Random(seed), []
    for i in range(count):
        (kind,) = source.choices(list(KINDS), [share for _, share in KINDS.values()])
        problem = Problem(f"{seed}.{i} {kind}")
        KINDS[kind][0](source, problem)
        operators = " ".join(x.op for x in problem.steps)
        problem.name += f" {operators} {problem.inputs[0][0]} {problem.inputs[0][1]}"
        found.append(problem)
    return found


def _unary(r: random.Random, c: Problem, x: str) -> str:
    op, *by = r.choice(UNARY)
    if op == "clip":
        return c.do("clip", x, lo=-1.0, hi=3.0)
    return c.do(op, x, by=by[0]) if by else c.do(op, x)


def _size(r: random.Random) -> int:
    """Draw the elements in all: two thirds are large, a third those of decode steps."""
    if r.random() < 0.65:
        return int(2 ** r.uniform(25, 28))
    return int(2 ** r.uniform(15, 24))


def _columns(r: random.Random) -> int:
    share = r.random()
    if share < 0.6:
        return r.choice(HIDDEN)
    if share < 0.8:
        return 8 * r.randint(5, 2000)
    return r.choice(VOCABULARY) if share < 0.9 else r.randint(33, 9001)


def _rows(r: random.Random, n: int) -> int:
    return max(1, _size(r) // n)


def _elementwise(r: random.Random, c: Problem) -> None:
    dtype = r.choice(FLOATS)
    shape: tuple[int, ...]
    others: list[tuple[int, ...]]
    if r.random() < 0.5:
        n = _columns(r)
        shape = (_rows(r, n), n)
        others = [(shape[0], 1), (n,), shape, shape]
    else:
        b, ch, h = r.choice((1, 4, 32)), r.choice((64, 128, 320, 512)), r.choice((14, 28, 56, 64))
        shape = (b, ch, h, h)
        others = [(1, ch, 1, 1), (b, ch, 1, 1), shape, shape]
    x = c.take(shape, dtype)
    if r.random() < 0.2:  # quantised storage
        c.inputs[0] = (shape, "int8", "int8")
        x = c.do("cast", x, dtype=dtype)
    outputs: list[str] = []
    for _ in range(r.randint(2, 6)):
        if r.random() < 0.5:
            x = _unary(r, c, x)
        elif r.random() < 0.15:
            x = c.do("where", c.take(shape, "bool", "mask"), x, c.take(shape, dtype))
        else:
            x = c.do(r.choice(BINARY), x, c.take(r.choice(others), dtype))
        if r.random() < 0.1 and not outputs:
            outputs.append(x)
    if r.random() < 0.15 and dtype != "float32":
        x = c.do("cast", x, dtype="float32")
    c.outputs = [*outputs, x] if x not in outputs else outputs


def _before(r: random.Random, c: Problem, x: str, dtype: str) -> str:
    """Add what is in front of a reduction: a residual, a scale, a bias, a cap or an activation."""
    shape = c.inputs[0][0]
    kind = r.choice(("residual", "scale", "bias", "cap", "act"))
    if kind == "residual":
        return c.do("add", x, c.take(shape, dtype))
    if kind == "scale":
        return c.do("scale", x, by=0.125)
    if kind == "bias":
        return c.do("add", x, c.take(shape[-1:], dtype))
    if kind == "cap":
        return c.do("scale", c.do("tanh", c.do("scale", x, by=0.1015625)), by=10.0)
    return _unary(r, c, x)


REDUCTIONS = (
    *("softmax", "log_softmax", "rms", "layer", "l2", "quant8", "quantf8", "lse", "sum", "var"),
    *("max", "argmax", "custom"),
)
WIDE = ("l2", "quant8", "quantf8", "lse", "sum", "var", "custom")  # in float32


def _row_reduction(r: random.Random, c: Problem) -> None:
    dtype = r.choice(FLOATS)
    n = _columns(r)
    x = c.take((_rows(r, n), n), dtype)
    for _ in range(r.choice((0, 0, 1, 2))):
        x = _before(r, c, x, dtype)
    kind = r.choice(REDUCTIONS)
    wide = c.do("cast", x, dtype="float32") if dtype != "float32" and kind in WIDE else x
    if kind in _LAST:
        c.outputs = _LAST[kind](c, x, wide)
        return
    y, row = _WHOLE_ROWS[kind](c, x, wide, dtype)
    shape = c.inputs[0][0]
    for _ in range(r.choice((0, 0, 1, 2))):
        if r.random() < 0.6:
            y = c.do(r.choice(("mul", "add")), y, c.take(r.choice((shape, (n,))), dtype))
        else:
            y = _unary(r, c, y)
    c.outputs = [y]
    if x != "x0" and r.random() < 0.5:
        c.outputs.append(x)
    if row and r.random() < 0.3:
        c.outputs.append(row)


def _quantise(c: Problem, wide: str, top: float, dtype: str) -> list[str]:
    largest = c.do("shift", c.do("amax", c.do("abs", wide), axis=-1, keep=True), by=1e-8)
    scale = c.do("scale", largest, by=1 / top)
    y = c.do("div", wide, scale)
    if dtype == "int8":
        y = c.do("round", y)
    return [c.do("cast", c.do("clip", y, lo=-top, hi=top), dtype=dtype), scale]


def _log_sum_exp(c: Problem, _: str, wide: str) -> list[str]:
    largest = c.do("amax", wide, axis=-1, keep=True)
    total = c.do("sum", c.do("exp", c.do("sub", wide, largest)), axis=-1, keep=True)
    return [c.do("add", c.do("log", total), largest)]


def _variance(c: Problem, _: str, wide: str) -> list[str]:
    apart = c.do("sub", wide, c.do("mean", wide, axis=-1, keep=True))
    return [c.do("mean", c.do("square", apart), axis=-1, keep=False)]


_LAST: dict[str, Callable[[Problem, str, str], list[str]]] = {
    "quant8": lambda c, _, wide: _quantise(c, wide, 127.0, "int8"),
    "quantf8": lambda c, _, wide: _quantise(c, wide, 448.0, "float8_e4m3fn"),
    "lse": _log_sum_exp,
    "sum": lambda c, _, wide: [c.do("sum", wide, axis=-1, keep=False)],
    "max": lambda c, x, _: [c.do("amax", x, axis=-1, keep=True)],
    "var": _variance,
    "argmax": lambda c, x, _: [c.do("argmax", x)],
}


def _rms(c: Problem, x: str, _: str, dtype: str) -> tuple[str, str]:
    n = c.inputs[0][0][-1]
    return c.do("rms_norm", x, c.take((n,), dtype), eps=1e-5), ""


def _layer(c: Problem, x: str, _: str, dtype: str) -> tuple[str, str]:
    n = c.inputs[0][0][-1]
    return c.do("layer_norm", x, c.take((n,), dtype), c.take((n,), dtype), eps=1e-5), ""


def _l2(c: Problem, _: str, wide: str, dtype: str) -> tuple[str, str]:
    total = c.do("sum", c.do("square", wide), axis=-1, keep=True)
    row = c.do("rsqrt", c.do("shift", total, by=1e-6))
    return c.do("cast", c.do("mul", wide, row), dtype=dtype), row


def _centred(c: Problem, _: str, wide: str, dtype: str) -> tuple[str, str]:
    mean = c.do("mean", c.do("mul", c.do("sigmoid", wide), wide), axis=-1, keep=True)
    return c.do("cast", c.do("sub", wide, mean), dtype=dtype), ""


_WHOLE_ROWS: dict[str, Callable[[Problem, str, str, str], tuple[str, str]]] = {
    "softmax": lambda c, x, _, __: (c.do("softmax", x, axis=-1), ""),
    "log_softmax": lambda c, x, _, __: (c.do("log_softmax", x, axis=-1), ""),
    "rms": _rms,
    "layer": _layer,
    "l2": _l2,
    "custom": _centred,
}


def _other_axes(r: random.Random, c: Problem) -> None:
    dtype, kind = r.choice(FLOATS[:4]), r.randrange(6)
    if kind == 0:  # over rows
        n = r.choice(HIDDEN)
        x = c.take((_rows(r, n), n), dtype)
        wide = c.do("cast", x, dtype="float32")
        c.outputs = [c.do(r.choice(("sum", "mean")), wide, axis=0, keep=False)]
    elif kind == 1:  # the middle axis
        b, n = r.choice((8, 64, 512)), r.choice((32, 64, 128, 256))
        x = c.take((b, max(2, _size(r) // (b * n)), n), dtype)
        is_softmax = r.random() < 0.5
        c.outputs = [c.do("softmax", x, axis=1) if is_softmax else c.do("amax", x, axis=1, keep=0)]
    elif kind in (2, 3):  # pixels, NCHW
        b, ch = r.choice((1, 8, 64)), r.choice((64, 320, 512, 1280))
        h = r.choice((7, 14, 28, 64))
        x = c.take((b, ch, h, h), "float16")
        if kind == 2:
            c.outputs = [c.do("mean", x, axis=[2, 3], keep=False)]
            return
        weights = [c.take((ch,), "float16") for _ in range(2)]
        y = c.do("group_norm", x, *weights, groups=32, eps=1e-5)
        c.outputs = [c.do("silu", y) if r.random() < 0.6 else y]
    elif kind == 4:  # of heads
        b, h, d = r.choice((1, 4, 16)), r.choice((8, 16, 32)), r.choice((64, 80, 96, 128, 256))
        x = c.take((b, max(1, _size(r) // (b * h * d)), h, d), dtype)
        y = c.do("rms_norm", x, c.take((d,), dtype), eps=1e-6)
        c.outputs = [c.do("transpose", y, axes=(0, 2, 1, 3)) if r.random() < 0.6 else y]
    else:  # masked attention weights
        b, h, s = r.choice((1, 4)), r.choice((8, 16)), r.choice((128, 512, 1000, 2048))
        x = c.take((b, h, s, s), dtype)
        mask = c.take((b, 1, 1, s) if r.random() < 0.5 else (b, 1, s, s), dtype)
        c.outputs = [c.do("softmax", c.do("add", c.do("scale", x, by=0.125), mask), axis=-1)]


def _layout(r: random.Random, c: Problem) -> None:
    dtype = r.choice(FLOATS)
    _LAYOUTS[r.randrange(len(_LAYOUTS))](r, c, dtype)


def _transpose_matrix(r: random.Random, c: Problem, dtype: str) -> None:
    b, h, w = r.choice((1, 8, 32)), 8 * r.randint(4, 128), 8 * r.randint(4, 128)
    x = c.take((max(1, min(b, _size(r) // (h * w))), h, w), dtype)
    c.outputs = [_unary(r, c, c.do("transpose", x, axes=(0, 2, 1)))]


def _to_channels_last(r: random.Random, c: Problem, dtype: str) -> None:
    b, ch, h = r.choice((1, 8, 32)), r.choice((64, 128, 320)), r.choice((28, 56, 96))
    x = c.take((b, ch, h, h), dtype)
    c.outputs = [c.do("add", c.do("transpose", x, axes=(0, 2, 3, 1)), c.take((ch,), dtype))]


def _transpose_heads(r: random.Random, c: Problem, dtype: str) -> None:
    b, s = r.choice((1, 4, 16)), r.choice((128, 1024, 4096))
    h, d = r.choice((8, 32)), r.choice((64, 128))
    c.outputs = [c.do("transpose", c.take((b, s, h, d), dtype), axes=(0, 2, 1, 3))]


def _gate_halves(r: random.Random, c: Problem, dtype: str) -> None:
    n = 2 * r.choice(HIDDEN)
    x = c.take((_rows(r, n), n), dtype)
    first = c.do("part", x, axis=1, begin=0, end=n // 2)
    second = c.do("part", x, axis=1, begin=n // 2, end=n)
    c.outputs = [c.do("mul", c.do(r.choice(("silu", "gelu", "sigmoid")), first), second)]


def _concatenate(r: random.Random, c: Problem, dtype: str) -> None:
    n, m = r.choice(HIDDEN), r.choice((64, 128, 1024))
    rows = _rows(r, n)
    parts = [c.take((rows, n), dtype), c.take((rows, m), dtype)]
    c.outputs = [_unary(r, c, c.do("concat", *parts, axis=1))]


def _gather_rows(r: random.Random, c: Problem, dtype: str) -> None:
    n, vocabulary = r.choice(HIDDEN), r.choice(VOCABULARY)
    count = max(1, min(65536, _size(r) // n))
    index = c.take((count,), "int32", f"index:{vocabulary}")
    x = c.do("gather", c.take((vocabulary, n), dtype), index)
    if r.random() < 0.5:
        c.outputs = [c.do("scale", x, by=2.0)]
    else:
        c.outputs = [c.do("rms_norm", x, c.take((n,), dtype), eps=1e-6)]


def _pad(r: random.Random, c: Problem, dtype: str) -> None:
    b, ch, h = r.choice((1, 8)), r.choice((64, 320)), r.choice((28, 64))
    x = c.take((b, ch, h, h), dtype)
    c.outputs = [c.do("relu", c.do("pad", x, widths=(0, 0, 0, 0, 1, 1, 1, 1)))]


def _repeat_heads(r: random.Random, c: Problem, dtype: str) -> None:
    b, s = r.choice((1, 4)), r.choice((512, 2048))
    h, d = r.choice((2, 4, 8)), r.choice((64, 128))
    x = c.take((b, s, h, d), dtype)
    c.outputs = [c.do("repeat", x, times=r.choice((2, 4, 8)), axis=2)]


_LAYOUTS = (
    *(_transpose_matrix, _to_channels_last, _transpose_heads, _gate_halves, _concatenate),
    *(_gather_rows, _pad, _repeat_heads),
)
KINDS = {
    "elementwise": (_elementwise, 0.25),
    "row_reduction": (_row_reduction, 0.35),
    "other_axes": (_other_axes, 0.15),
    "layout": (_layout, 0.25),
}
