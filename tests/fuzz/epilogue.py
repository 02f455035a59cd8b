"""Draws what follows a product: elementwise steps, diamonds, side inputs, outputs elsewhere.

    C -> bias -> relu -> D[j, i] = cast(...)

The value that is passed on is a tensor with the axes of C; the last step writes an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .draw import Draw
from .product import Product
from .script import Script

TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "float8_e4m3fn")
ROUNDS = ("float8_e4m3fn", "bfloat16", "float16", "float32", "float64")  # coarsest first
SIDES = (
    "column",
    "row",
    "full",
    "scalar",
    "transposed",
    "larger",
    "strided",
    "gathered",
    "backwards",
)


@dataclass
class Value:
    """A tensor on the way to the output; `axes` are loop names, "i" and "j" among them."""

    script: Script
    name: str
    dtype: str
    axes: list[str]
    sizes: list[Any]
    is_exact: bool = True
    is_small: bool = True  # no value that a cast to an integer could not hold

    @property
    def at(self) -> str:
        """The element of the current iteration."""
        return f"{self.name}[{', '.join('v' + a for a in self.axes)}]"

    def size(self, axis: str) -> Any:
        """Return the extent of an axis."""
        return self.sizes[self.axes.index(axis)]

    def step(self, word: str, text: str, dtype: str = "") -> Value:
        """Append a block that computes a tensor of the same shape."""
        name, dtype = self.script.name(word), dtype or self.dtype
        self.script.tensor(name, self.sizes, dtype, scope="inside")
        at = ", ".join("v" + a for a in self.axes)
        self.script.block(name, self.axes, self.sizes, [f"{name}[{at}] = {text}"])
        made = Value(self.script, name, dtype, self.axes, self.sizes, self.is_exact, self.is_small)
        made.note_type(dtype)
        return made

    def note_type(self, dtype: str) -> None:
        """Remember the coarsest type that a value was rounded to."""
        if dtype in ROUNDS:
            last = self.script.facts.get("rounds", "float32")
            self.script.facts["rounds"] = min(dtype, last, key=ROUNDS.index)

    def const(self, number: float) -> str:
        """Return a constant of the value's type."""
        return f"T.{self.dtype}({number})"


def _cast(text: str, dtype: str) -> str:
    return f'T.Cast("{dtype}", {text})'


def _side(draw: Draw, value: Value) -> str:
    """Add a side input; return the text of its element, cast to the value's type."""
    script, form = value.script, draw.choose(SIDES)
    dtype = draw.choose(("float32", "float16", "bfloat16", "int32"), (40, 40, 15, 5))
    name, m, n = script.name("S"), value.size("i"), value.size("j")
    if form == "strided" and isinstance(m, int) and isinstance(n, int):
        shape, at = [2 * m, 3 * n + 1], "vi * 2, vj * 3 + 1"
    elif form == "larger" and isinstance(m, int) and isinstance(n, int):
        shape, at = [m + 3, n + 5], "vi + 3, vj + 5"
    elif form == "backwards" and isinstance(m, int) and isinstance(n, int):
        shape, at = [m, n], f"{m - 1} - vi, {n - 1} - vj"
    elif form == "gathered":
        rows = script.name("rows")
        script.tensor(rows, [m], "int32")
        script.facts.setdefault("fills", {})[rows] = "rng.integers(0, 5, shape)"
        shape, at = [5, n], f"{rows}[vi], vj"
    else:
        shape, at = {
            "column": ([n], "vj"),
            "row": ([m], "vi"),
            "scalar": ([1], "0"),
            "transposed": ([n, m], "vj, vi"),
        }.get(form, ([m, n], "vi, vj"))
    script.tensor(name, shape, dtype)
    load = f"{name}[{at}]"
    return load if dtype == value.dtype else _cast(load, value.dtype)


Step = Callable[[Draw, Value], Value]
STEPS: dict[str, Step] = {}


def step(function: Step) -> Step:
    """Add a step to the table, by its name."""
    STEPS[function.__name__] = function
    return function


@step
def relu(draw: Draw, x: Value) -> Value:
    """Take the largest of x and 0."""
    return x.step("relu", f"T.max({x.at}, {x.const(0)})")


@step
def scale(draw: Draw, x: Value) -> Value:
    """Take twice x, minus x, x less 2, absolute value."""
    text = draw.choose(("{x} * {two}", "{zero} - {x}", "{x} - {two}", "T.abs({x})"))
    return x.step("scale", text.format(x=x.at, two=x.const(2), zero=x.const(0)))


@step
def clip(draw: Draw, x: Value) -> Value:
    """Keep x between -3 and 6."""
    made = x.step("clip", f"T.min(T.max({x.at}, {x.const(-3)}), {x.const(6)})")
    made.is_small = True
    return made


@step
def combine(draw: Draw, x: Value) -> Value:
    """Combine with a side input: bias, residual, product, maximum, difference either way."""
    other = _side(draw, x)
    form = draw.choose(("{x} + {y}", "{x} * {y}", "T.max({x}, {y})", "{y} - {x}"))
    return x.step("combine", form.format(x=x.at, y=other))


@step
def cast(draw: Draw, x: Value) -> Value:
    """Cast to another float type; to an integer where it is sure to fit."""
    dtype = draw.choose(("float16", "bfloat16", "float32", "int32"))
    if dtype == "int32" and not (x.is_small and x.is_exact):
        return x
    made = x.step("cast", _cast(x.at, dtype), dtype)
    made.is_exact &= dtype != "bfloat16"  # TVM's llvm leaves out a rounding there and back
    return made


@step
def activation(draw: Draw, x: Value) -> Value:
    """Apply gelu, sigmoid, tanh, exp, square root, in x's type or in float32; not exact."""
    if not x.dtype.startswith(("float", "bfloat")):
        return x
    form = draw.choose(("gelu", "sigmoid", "tanh", "exp", "sqrt"))
    wide = "float32" if form == "gelu" else draw.choose(("float32", x.dtype))  # LLVM has that erf
    v = x.at if wide == x.dtype else _cast(x.at, wide)
    if draw.chance(50):  # a constant in some places: not every lane holds a value of its own
        place = draw.choose(("vi < 24", "vi >= vj"))
        v = f"T.if_then_else({place}, {v}, T.{wide}(-9))"
    if form == "gelu":
        text = f"{v} * T.{wide}(0.5) * (T.{wide}(1) + T.erf({v} * T.{wide}(0.7071)))"
    elif form == "exp":
        text = f"T.exp(T.min({v}, T.{wide}(3)))"
    elif form == "sqrt":
        text = f"T.sqrt(T.max({v}, T.{wide}(0)))"
    else:
        text = f"T.{form}({v})"
    made = x.step(form, text, wide)
    made.is_exact, made.is_small = False, False
    return made


@step
def silu(draw: Draw, x: Value) -> Value:
    """Make a diamond of two stages: x * sigmoid(x)."""
    if not x.dtype.startswith(("float", "bfloat")):
        return x
    factor = x.step("sigmoid", f"T.sigmoid({x.at})")
    made = x.step("silu", f"{x.at} * {factor.at}")
    made.is_exact, made.is_small = False, False
    return made


@step
def diamond(draw: Draw, x: Value) -> Value:
    """Read one value in several stages."""
    a = x.step("branch", f"T.max({x.at}, {x.const(0)})")
    if not draw.chance(50):
        return x.step("join", f"{x.at} + {a.at}")
    b = x.step("branch", f"{a.at} + {x.at}")
    c = x.step("branch", f"{x.at} * {x.const(2)}")
    return x.step("join", f"{b.at} - {c.at} + {a.at}")


@step
def select(draw: Draw, x: Value) -> Value:
    """Select by value or by place: where, causal mask, an index in the value."""
    zero, nine = x.const(0), x.const(-9)
    text = draw.choose(
        (
            f"T.if_then_else({x.at} > {zero}, {x.at}, {nine})",
            f"T.if_then_else(vi >= vj, {x.at}, {nine})",
            f"T.Select({x.at} > {zero}, {x.at}, {nine})",
            f"T.if_then_else(vj < 24, {x.at}, {zero})",
            f"{x.at} + " + _cast("vi % 3 + vj % 2", x.dtype),
        )
    )
    return x.step("select", text)


@step
def squared(draw: Draw, x: Value) -> Value:
    """Multiply x by x, which overflows a narrow type."""
    made = x.step("square", f"{x.at} * {x.at}")
    made.is_small = False
    if x.dtype != "float32":
        made.is_exact = False
    return made


@step
def two_places(draw: Draw, x: Value) -> Value:
    """Read the product at two places, as a rotary embedding does."""
    size = x.size("j")
    if not isinstance(size, int):
        return x
    other = ", ".join(f"{size - 1} - vj" if a == "j" else "v" + a for a in x.axes)
    return x.step("cross", f"{x.at} + {x.name}[{other}]")


def _last(draw: Draw, x: Value, dtype: str) -> None:
    """Append the block that writes the output D, in one of many forms."""
    script, axes = x.script, x.axes
    plain = [f"v{a}" for a in axes]
    forms = ["plain", "transposed", "crop", "shift", "embed", "roll", "backwards", "flat",
             "twice", "upsample", "downsample", "collide", "predicate", "padded", "unit",
             "part"]  # fmt: skip
    form = draw.choose(forms, (52, 6, *(3,) * 14))
    m, n = x.size("i"), x.size("j")
    if not (isinstance(m, int) and isinstance(n, int)):
        form = draw.choose(("plain", "transposed")) if form != "plain" else form
    shape, loops, read = list(x.sizes), list(x.sizes), list(plain)
    store, extra = list(plain), []
    i, j = axes.index("i"), axes.index("j")
    side = draw.choose((j, i))
    size = x.sizes[side]
    by = draw.choose((8, 3, 16))
    value = ""
    if form == "transposed":
        store[i], store[j], shape[i], shape[j] = store[j], store[i], shape[j], shape[i]
    elif form == "crop" and size > by:
        shape[side] = loops[side] = size - by
    elif form == "shift" and size > by:
        shape[side] = loops[side] = size - by
        read[side] += f" + {by}"
    elif form == "embed":
        shape[side] += by
        store[side] += f" + {by}"
    elif form == "roll":
        read[side] = f"({read[side]} + {by}) % {size}"
    elif form == "backwards":
        read[side] = f"{size - 1} - {read[side]}"
    elif form == "flat":
        shape, store = [m * n], [f"vi * {n} + vj"]
        if len(axes) > 2:
            return _last_plain(x, dtype)
    elif form == "twice":
        axes, loops = ["q", *axes], [2, *loops]
        shape, store = [2, *shape], ["vq", *store]
    elif form == "upsample":
        shape[side] = loops[side] = 2 * size
        read[side] += " // 2"
    elif form == "downsample" and size > 1:
        shape[side] = loops[side] = size // 2
        read[side] += " * 2"
    elif form == "collide" and size > 1:
        half = size - size // 2
        store[side] = draw.choose((f"{store[side]} % {half}", f"{store[side]} // 2"))
        shape[side] = half if "%" in store[side] else (size + 1) // 2
        script.facts["must_refuse"] = "it stores two elements of the product to one place"
    elif form == "predicate":
        extra = [f"T.where({draw.choose(('i < j', 'j < 24', 'i >= 8'))})"]
    elif form == "padded":
        shape[side] = loops[side] = size + by
        inside = f"v{axes[side]} < {size}"
        load = f"{x.name}[{', '.join(read)}]"
        value = f"T.if_then_else({inside}, {load}, {x.const(3)})"
    elif form == "unit":
        shape.insert(draw.index(len(shape) + 1), 1)
        store.insert(shape.index(1) if 1 not in x.sizes else 0, "0")
        if 1 in x.sizes:
            shape = [1, *x.sizes]
    elif form == "part" and size > by:
        loops[side] = size - by
    value = value or f"{x.name}[{', '.join(read)}]"
    value = value if dtype == x.dtype else _cast(value, dtype)
    script.tensor("D", shape, dtype)
    body = [*extra, f"D[{', '.join(store)}] = {value}"]
    script.block("D", axes, loops, body)


def _last_plain(x: Value, dtype: str) -> None:
    x.script.tensor("D", x.sizes, dtype)
    value = x.at if dtype == x.dtype else _cast(x.at, dtype)
    at = ", ".join("v" + a for a in x.axes)
    x.script.block("D", x.axes, x.sizes, [f"D[{at}] = {value}"])


def draw_epilogue(draw: Draw, p: Product, most: int = 5, plain: bool = False) -> None:
    """Write the product and what follows it; the output is C itself, or D and perhaps others.

    plain: steps and an output that are sure to be served, for cases that try something else.
    """
    script = p.script
    views = script.facts.pop("_views", {})
    options = script.facts.pop("_options", {})
    for tensor, name in zip("AB", p.inputs, strict=True):
        known = any(t.name == name for t in script.tensors)
        if not known and not (p.same and tensor == "B"):
            more = {"view": views.get(tensor), "options": options.get(tensor, "")}
            script.tensor(name, p.shape[tensor], p.dtype, **more)
    p.write()
    # rows, columns and depth are called so here, and are never a batch
    facts = script.facts
    facts["untrue"] = (*facts.get("untrue", ()), r"a batch of \S+ \(v[ijk]\)")
    narrow = p.dtype in ("float16", "bfloat16") and not p.has_wide_operand
    if p.cast == "after" and narrow and p.acc == "float32":
        script.facts["must_note"] = "products that the program rounds and the kernel does not"
    if p.acc in ("bfloat16", "float8_e4m3fn"):
        script.facts["exact"] = False
        script.facts["rounds"] = p.acc
    axes = [{"vi": "i", "vj": "j", "vb": "b", "vu": "u"}.get(x, "") for x in p.index["C"]]
    goes_on = p.is_plain_output and all(axes) and len(set(axes)) == len(axes) and "i" in axes
    if not (goes_on and "j" in axes and draw.chance(75)):
        script.tensor(
            p.name, p.shape["C"], p.acc, view=views.get("C"), options=options.get("C", "")
        )
        return
    c = script.tensor(p.name, p.shape["C"], p.acc, scope="inside")
    value = Value(script, p.name, p.acc, axes, list(p.shape["C"]))
    steps = (relu, scale, combine, cast, silu) if plain else (*STEPS.values(), activation, select)
    for function in draw.some(steps, 62, most):
        value = function(draw, value)
    dtype = draw.choose(TYPES[: 3 if plain else 6], (40, 30, 20, 3, 3, 4)[: 3 if plain else 6])
    # beyond its range TVM's llvm makes a NaN of a float8 and CUDA the largest value
    if dtype in ("int32", "float8_e4m3fn") and not (value.is_small and value.is_exact):
        dtype = "float32"
    if dtype.startswith(
        "float8"
    ):  # beyond its range CUDA saturates, and stock TVM on a CPU does not
        value = clip(draw, value)
    value.note_type(dtype)
    if not value.is_exact:
        script.facts["exact"] = False
    if plain:
        return _last_plain(value, dtype)
    if draw.chance(8):  # a value on the way is an output too
        inside = [t for t in script.tensors if t.scope == "inside" and t.shape == c.shape]
        draw.choose(inside).scope = "argument"
    if value.name != p.name and dtype == value.dtype and draw.chance(30):
        script.find(value.name).scope = "argument"
        return
    _last(draw, value, dtype)
