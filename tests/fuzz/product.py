"""Draws one product, C = A B, in the plain form or with a few twists.

A twist changes how the program says the product (loops, indices, tensors in memory, initial value,
casts) or what it computes. Which of them a kernel can serve is the judge's business, not this
module's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .case import View
from .draw import Draw
from .script import Script, indent

# ragged and whole sizes, the simplest first: rows, columns and depths
ROWS = (64, 128, 8, 40, 72, 100, 127, 136, 192, 1, 31, 63, 16)
COLUMNS = (64, 128, 8, 40, 72, 104, 136, 192, 24, 97, 16, 1)
DEPTHS = (64, 128, 72, 16, 40, 136, 200, 8, 192, 24, 100, 1)
OPERANDS = ("float16", "bfloat16", "float32", "int8", "float8_e4m3fn", "float64")
HOLDS = {"bfloat16": 256, "float16": 2048, "float8_e4m3fn": 16}  # all integers up to this one


@dataclass
class Product:
    """Loops, axes and indices of one product, as text and sizes that twists change."""

    script: Script
    m: int
    n: int
    k: int
    layout: str = "NT"
    dtype: str = "float16"
    acc: str = "float32"
    cast: str = "before"
    name: str = "C"
    inputs: tuple[str, str] = ("A", "B")
    loops: list[tuple[str, Any, Any]] = field(default_factory=list)
    axes: list[list[Any]] = field(default_factory=list)  # variable, kind, domain, binding
    index: dict[str, list[str]] = field(default_factory=dict)
    shape: dict[str, list[Any]] = field(default_factory=dict)
    where: str = ""
    init: str | None = "zero"
    update: str = "{c} + {x}"
    same: bool = False  # B is A
    has_wide_operand: bool = False  # one of the sum's type, so that products are not rounded
    is_plain_output: bool = True  # all of C is written, so an epilogue may follow

    def __post_init__(self) -> None:
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        self.loops = [("i", 0, self.m), ("j", 0, self.n), ("k", 0, self.k)]
        self.axes = [
            ["vi", "spatial", self.m, "i"],
            ["vj", "spatial", self.n, "j"],
            ["vk", "reduce", self.k, "k"],
        ]
        orders = {
            "A": {"N": "mk", "T": "km"}[self.layout[0]],
            "B": {"N": "kn", "T": "nk"}[self.layout[1]],
            "C": "mn",
        }
        var = {"m": "vi", "n": "vj", "k": "vk"}
        self.index = {t: [var[d] for d in order] for t, order in orders.items()}
        self.shape = {t: [sizes[d] for d in order] for t, order in orders.items()}

    def axis(self, name: str) -> list[Any]:
        """Return an axis by the name of its variable."""
        return next(a for a in self.axes if a[0] == name)

    def extend(self, tensor: str, place: int, extent: Any, index: str) -> None:
        """Insert a dimension in front of another."""
        self.shape[tensor].insert(place, extent)
        self.index[tensor].insert(place, index)

    def load(self, tensor: str) -> str:
        """Return the text of an element of A or B, cast where the cast stands before."""
        name = self.inputs[0] if tensor == "A" or self.same else self.inputs[1]
        text = f"{name}[{', '.join(self.index[tensor])}]"
        return f'T.Cast("{self.acc}", {text})' if self.cast == "before" else text

    def write(self) -> None:
        """Add tensors A and B, and the block; C is added by the caller."""
        c = f"{self.name}[{', '.join(self.index['C'])}]"
        x, y = self.load("A"), self.load("B")
        term = f"{x} * {y}"
        if self.cast == "after":
            term = f'T.Cast("{self.acc}", {term})'
        size = self.script.size
        body = []
        for var, kind, domain, binding in self.axes:
            pair = isinstance(domain, tuple)
            text = f"({size(domain[0])}, {size(domain[1])})" if pair else size(domain)
            body.append(f"{var} = T.axis.{kind}({text}, {binding})")
        if self.where:
            body.append(f"T.where({self.where})")
        if self.init is not None:
            start = f"T.{self.acc}(0)" if self.init == "zero" else self.init
            body += ["with T.init():", f"    {c} = {start}"]
        body.append(f"{c} = {self.update.format(c=c, x=term)}")
        self.script.loops(self.loops, [f'with T.sblock("{self.name}"):', *indent(body)])


Twist = Callable[[Draw, Product], None]
TWISTS: dict[str, Twist] = {}


def twist(function: Twist) -> Twist:
    """Add a twist to the table, by its name."""
    TWISTS[function.__name__] = function
    return function


@twist
def unit_dimension(draw: Draw, p: Product) -> None:
    """Add a dimension of one, anywhere, with a loop or simplified away."""
    tensor = draw.choose("CAB")
    index = draw.choose(("0", "vu"))
    if index == "vu" and all(a[0] != "vu" for a in p.axes):
        p.loops.insert(0, ("u", 0, 1))
        p.axes.insert(0, ["vu", "spatial", 1, "u"])
    p.extend(tensor, draw.index(len(p.shape[tensor]) + 1), 1, index)


@twist
def unit_axis(draw: Draw, p: Product) -> None:
    """Make an extent one, its index simplified to 0 as TVM does: C[0, n]."""
    var = draw.choose(("vi", "vj", "vk"))
    for tensor in "ABC":
        for place, index in enumerate(p.index[tensor]):
            if index == var:
                p.index[tensor][place], p.shape[tensor][place] = draw.choose(("0", var)), 1
    axis = p.axis(var)
    axis[2] = 1
    p.loops = [(name, 0, 1) if name == axis[3] else (name, a, b) for name, a, b in p.loops]


@twist
def batch(draw: Draw, p: Product) -> None:
    """Add a batch in front, or between the dimensions, of one to three."""
    size = draw.choose((1, 2, 3))
    place = draw.choose((0, 0, 1))
    if any(a[0] == "vb" for a in p.axes):
        return
    for tensor in "C" + draw.choose(("AB", "A", "B")):
        p.extend(tensor, place, size, "vb")
    p.loops.insert(0, ("b", 0, size))
    p.axes.insert(0, ["vb", "spatial", size, "b"])


@twist
def slice_of_tensor(draw: Draw, p: Product) -> None:
    """Take a fixed index of a further dimension: a head of a QKV tensor."""
    tensor = draw.choose("ABC")
    p.extend(tensor, draw.index(len(p.shape[tensor])), draw.choose((3, 2)), "1")
    p.is_plain_output &= tensor != "C"


@twist
def offset_in_tensor(draw: Draw, p: Product) -> None:
    """Begin rows or columns somewhere inside."""
    tensor, by = draw.choose("ABC"), draw.choose((16, 8, 64, 3))
    place = draw.index(len(p.shape[tensor]))
    if isinstance(p.shape[tensor][place], int) and p.index[tensor][place].startswith("v"):
        p.shape[tensor][place] += by
        p.index[tensor][place] += f" + {by}"
        p.is_plain_output &= tensor != "C"


@twist
def larger_tensor(draw: Draw, p: Product) -> None:
    """Let a tensor go on beyond the product."""
    tensor, by = draw.choose("ACB"), draw.choose((64, 8, 24, 5, 0, 0, 0))
    place = draw.index(len(p.shape[tensor]))
    size = p.shape[tensor][place]
    if isinstance(size, int):
        p.shape[tensor][place] = size + (by or 128 - size % 128)  # 0: up to whole tiles
        p.is_plain_output &= tensor != "C"


@twist
def odd_index(draw: Draw, p: Product) -> None:
    """Read every second row, rows backwards, a window that moves along k."""
    tensor = draw.choose("AB")
    place = draw.index(len(p.shape[tensor]))
    size, index = p.shape[tensor][place], p.index[tensor][place]
    if not isinstance(size, int) or not index.startswith("v"):
        return
    form = draw.index(3)
    if form == 0:
        p.shape[tensor][place], p.index[tensor][place] = 2 * size, f"{index} * 2"
    elif form == 1:
        p.index[tensor][place] = f"{size - 1} - ({index})"
    elif index != "vk" and isinstance(p.k, int):
        p.shape[tensor][place], p.index[tensor][place] = size + p.k, f"{index} + vk"


@twist
def view_of_memory(draw: Draw, p: Product) -> None:
    """Give strides and an offset of its own, as a view of a larger tensor has."""
    tensor = draw.choose("ABC")
    by, offset = draw.choose((0, 8, 64, 1, 4)), draw.choose((0, 8, 16, 1))
    shape = p.shape[tensor]
    if all(isinstance(extent, int) for extent in shape):
        strides = [1]
        for extent in shape[:0:-1]:
            strides.insert(0, strides[0] * extent + (by if len(strides) == 1 else 0))
        p.script.facts.setdefault("_views", {})[tensor] = View(tuple(strides), offset)


@twist
def alignment(draw: Draw, p: Product) -> None:
    """Promise where a tensor begins."""
    options = p.script.facts.setdefault("_options", {})
    options[draw.choose("ABC")] = draw.choose((", align=4", ", offset_factor=8"))


@twist
def loop_shorter_than_domain(draw: Draw, p: Product) -> None:
    """Let a loop cover a part of the domain that its block declares."""
    var = draw.choose(("k", "j", "i"))
    at = next((i for i, loop in enumerate(p.loops) if loop[0] == var), None)
    if at is None or not isinstance(p.loops[at][2], int):
        return
    end = p.loops[at][2] // 2 or 1
    p.loops[at] = (var, 0, draw.choose((end, max(1, end // 8 * 8))))
    p.is_plain_output &= var == "k"


@twist
def loop_from_elsewhere(draw: Draw, p: Product) -> None:
    """Begin a loop, or a domain, elsewhere than at zero."""
    var = draw.choose(("k", "i", "j"))
    axis, by = p.axis("v" + var), draw.choose((8, 3, 16))
    at = next((i for i, loop in enumerate(p.loops) if loop[0] == var), None)
    if at is None or not isinstance(axis[2], int) or axis[2] <= by or axis[3] != var:
        return
    axis[2], size = (by, axis[2]), axis[2]
    if draw.chance(50):
        p.loops[at] = (var, by, size)
    else:
        p.loops[at], axis[3] = (var, 0, size - by), f"{var} + {by}"
    p.is_plain_output &= var == "k"


@twist
def split_loop(draw: Draw, p: Product) -> None:
    """Make up an axis of two loops by hand."""
    var, inner = draw.choose(("k", "i", "j")), draw.choose((16, 8, 64))
    axis = p.axis("v" + var)
    at = next((i for i, loop in enumerate(p.loops) if loop[0] == var), None)
    if at is None or not isinstance(axis[2], int) or axis[2] % inner or axis[3] != var:
        return
    p.loops[at : at + 1] = [(f"{var}0", 0, axis[2] // inner), (f"{var}1", 0, inner)]
    axis[3] = f"{var}0 * {inner} + {var}1"


@twist
def fused_loops(draw: Draw, p: Product) -> None:
    """Make one loop over rows and columns."""
    i, j = p.axis("vi"), p.axis("vj")
    if [loop[0] for loop in p.loops] == ["i", "j", "k"] and (i[3], j[3]) == ("i", "j"):
        if not (isinstance(i[2], int) and isinstance(j[2], int)):
            return
        p.loops[:2] = [("f", 0, i[2] * j[2])]
        i[3], j[3] = f"f // {j[2]}", f"f % {j[2]}"


@twist
def loop_order(draw: Draw, p: Product) -> None:
    """Choose another order of the loops."""
    p.loops.insert(draw.index(len(p.loops)), p.loops.pop())


@twist
def predicate(draw: Draw, p: Product) -> None:
    """Take a part of the iterations only."""
    names = {loop[0] for loop in p.loops}
    if {"i", "j", "k"} <= names:
        p.where = draw.choose(("k < 40", "i < j", "j < 24"))
        p.is_plain_output &= p.where.startswith("k")


@twist
def initial_value(draw: Draw, p: Product) -> None:
    """Start from the old value of C, a bias, another constant or tensor, instead of zero."""
    form = draw.choose(("none", "column", "row", "one", "full"))
    if form == "none":
        p.init, p.is_plain_output = None, False
    elif form == "one":
        p.init = f"T.{p.acc}(1)"
    else:
        sides = {"column": (["vj"], [p.n]), "row": (["vi"], [p.m])}
        index, shape = sides.get(form, (["vi", "vj"], [p.m, p.n]))
        shape = [
            s if isinstance(s, str) else p.axis(v)[2] for s, v in zip(shape, index, strict=True)
        ]
        shape = [s[1] if isinstance(s, tuple) else s for s in shape]
        start = draw.choose((p.acc, p.dtype)) if "float" in p.dtype else p.acc
        p.script.tensor("start", shape, start)
        load = f"start[{', '.join(index)}]"
        p.init = load if start == p.acc else f'T.Cast("{p.acc}", {load})'


@twist
def other_sum(draw: Draw, p: Product) -> None:
    """Write not quite a sum of products."""
    p.update = draw.choose(
        (
            "{x} + {c}",
            "{c} + {x} * T." + p.acc + "(2)",
            "{c} - {x}",
            "T.max({c}, {x})",
            "{c} + T.if_then_else(vk < 24, {x}, T." + p.acc + "(0))",
            "{c} + {x} + {x}",
        )
    )


@twist
def one_tensor_twice(draw: Draw, p: Product) -> None:
    """Multiply A by its own transpose."""
    if p.shape["A"] == p.shape["B"]:
        p.same = True


@twist
def operand_computed_before(draw: Draw, p: Product) -> None:
    """Put a block in front of an operand: a cast, a transposition, a scaling, a dequantisation."""
    tensor = draw.choose("AB")
    form = draw.choose(("copy", "cast", "dequant", "narrow", "scale", "transpose"))
    shape, name = list(p.shape[tensor]), p.inputs[tensor == "B"]
    if p.same or len(shape) != 2:
        return
    inner = {"cast": p.acc}.get(form, p.dtype)
    outer = {"dequant": "int8", "narrow": "float32"}.get(form, p.dtype)
    source, at = f"{name}_raw", "[vx, vy]"
    if form == "transpose":
        at = "[vy, vx]"
    p.script.tensor(source, shape[::-1] if form == "transpose" else shape, outer)
    p.script.tensor(name, shape, inner, scope="inside")
    value = f"{source}{at}" if inner == outer else f'T.Cast("{inner}", {source}{at})'
    value += f" * T.{inner}(2)" if form == "scale" else ""
    p.script.block(name, ["x", "y"], shape, [f"{name}[vx, vy] = {value}"])
    p.script.facts["untrue"] = ("tensor of its own first",)
    p.has_wide_operand |= inner == p.acc


@twist
def gathered_rows(draw: Draw, p: Product) -> None:
    """Read rows of A by an index tensor."""
    if p.layout[0] == "N" and p.index["A"] == ["vi", "vk"] and isinstance(p.m, int):
        p.script.tensor("rows", [p.m], "int32")
        p.script.facts.setdefault("fills", {})["rows"] = f"rng.integers(0, {p.m}, shape)"
        p.index["A"][0] = "rows[vi]"


@twist
def second_reduction(draw: Draw, p: Product) -> None:
    """Add another reduction axis, of one or two."""
    size = draw.choose((1, 2))
    if any(a[0] == "vr" for a in p.axes):
        return
    for tensor in "AB":
        p.extend(tensor, draw.index(2), size, "vr")
    p.loops.insert(2, ("r", 0, size))
    p.axes.insert(2, ["vr", "reduce", size, "r"])


@twist
def symbolic(draw: Draw, p: Product) -> None:
    """Leave an extent to be known at run time only."""
    var = draw.choose(("i", "j", "k"))
    axis = p.axis("v" + var)
    if not isinstance(axis[2], int) or axis[3] != var or len(p.shape["C"]) != 2:
        return
    indices = [index for tensor in "ABC" for index in p.index[tensor] if axis[0] in index]
    if any(index != axis[0] for index in indices):
        return  # a part of a tensor, whose size would have to grow with the extent
    name = {"i": "m", "j": "n", "k": "depth"}[var]
    for tensor in "ABC":
        for place, index in enumerate(p.index[tensor]):
            if index == axis[0]:
                p.shape[tensor][place] = name
    value = draw.choose((axis[2], 1, 70, 0))
    p.script.symbols[name] = value
    axis[2] = name
    p.loops = [(v, 0, name) if v == var else (v, a, b) for v, a, b in p.loops]
    if var == "i":
        p.m = name  # type: ignore[assignment]
    elif var == "j":
        p.n = name  # type: ignore[assignment]
    else:
        p.k = name  # type: ignore[assignment]


OFTEN = (symbolic, view_of_memory, initial_value, larger_tensor, offset_in_tensor, batch)


def draw_product(draw: Draw, script: Script, twists: int = 2, name: str = "C") -> Product:
    """Draw sizes, layout and types, and up to `twists` twists; nothing is written yet."""
    layout = draw.choose(("NT", "NN", "TN", "TT"), (40, 25, 20, 15))
    any_size = draw.chance(10)  # also sizes whose rows are no multiple of 16 bytes
    inner = (layout[0] == "T", layout[1] == "N", layout != "TN")
    sizes = [
        [v for v in values if any_size or not is_inner or v % 8 == 0]
        for values, is_inner in zip((ROWS, COLUMNS, DEPTHS), inner, strict=True)
    ]
    m, n, k = (draw.choose(values) for values in sizes)
    product = Product(script, m, n, k, layout, name=name)
    product.dtype = draw.choose(OPERANDS, (58, 38, 1, 1, 1, 1))
    product.acc = draw.choose(("float32", product.dtype, "float64", "int32"), (93, 5, 1, 1))
    product.cast = draw.choose(("before", "after"), (85, 15))
    if product.acc == product.dtype:
        product.cast = "none"
    changes = draw.some((*TWISTS.values(), *OFTEN), 45, twists)
    # shapes first: a block in front of an operand, or strides, must not be of another shape
    for change in sorted(changes, key=(operand_computed_before, view_of_memory).__contains__):
        change(draw, product)
    return product
