"""Whole programs: several products, reductions beside one, foreign kernels, host loops.

Each function writes one program into a script and returns the blocks that `hs.matmul` is asked to
schedule; some also bind foreign blocks to threads, as a user would.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..case import Case, Step
from ..draw import Draw
from ..product import Product
from ..script import Script, indent
from .matmul import POLICIES, matmul_step

SIZES = ((64, 64, 64), (64, 64, 72), (50, 40, 72), (128, 96, 64), (100, 72, 136))
CONFIGS: tuple[dict[str, object], ...] = (
    {"tile": (64, 64, 64), "stages": 2, "consumers": 1},
    {"tile": (64, 64, 64), "stages": 1, "consumers": 1},
    {},
    {"tile": (128, 64, 64), "stages": 3, "consumers": 2, "persistent": 2},
    {"tile": (64, 48, 32), "stages": 2, "consumers": 2, "raster_group": 1, "persistent": 0},
)


@dataclass
class Plan:
    """One program on the way: sizes, script, statements behind those of `hs.matmul`."""

    draw: Draw
    script: Script
    m: int
    n: int
    k: int
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    def product(
        self, name: str = "C", a: str = "A", b: str = "B", inside: bool = True, k: int = 0
    ) -> None:
        """Add one product; its operands and output unless they are there."""
        p = Product(self.script, self.m, self.n, k or self.k, name=name, inputs=(a, b))
        for tensor, shape in ((a, p.shape["A"]), (b, p.shape["B"])):
            if all(t.name != tensor for t in self.script.tensors):
                self.script.tensor(tensor, shape, "float16")
        if all(t.name != name for t in self.script.tensors):
            scope = "inside" if inside else "argument"
            self.script.tensor(name, p.shape["C"], "float32", scope=scope)
        p.write()

    def elementwise(self, name: str, value: str, dtype: str = "float32", **more: str) -> None:
        """Add a block over rows and columns that writes name[vi, vj]."""
        if all(t.name != name for t in self.script.tensors):
            self.script.tensor(name, [self.m, self.n], dtype, **more)
        self.script.block(name, ["i", "j"], [self.m, self.n], [f"{name}[vi, vj] = {value}"])

    def reduction(self, name: str, start: str, value: str, scope: str = "argument") -> None:
        """Add a reduction over columns into name[vi]."""
        self.script.tensor(name, [self.m], "float32", scope=scope)
        body = ["with T.init():", f"    {name}[vi] = {start}", f"{name}[vi] = {value}"]
        self.script.block(name, ["i", "j"], [self.m, self.n], body, "SR")

    def bind(self, block: str) -> None:
        """Bind the loops of a foreign block to threads, before or behind the product."""
        text = (
            f'x, *_ = sch.get_loops("{block}"); x0, x1 = sch.split(x, [None, 4]); '
            'sch.bind(x0, "blockIdx.x"); sch.bind(x1, "threadIdx.x")'
        )
        (self.after if self.draw.chance(50) else self.before).append(text)


PROGRAMS: dict[str, Callable[[Plan], tuple[str, ...]]] = {}


def program(function: Callable[[Plan], tuple[str, ...]]) -> Callable[[Plan], tuple[str, ...]]:
    """Add a program to the table, by its name."""
    PROGRAMS[function.__name__] = function
    return function


@program
def chain(p: Plan) -> tuple[str, ...]:
    """Make two products, the second of what the first made."""
    p.n = p.k = p.m = 64
    p.product("C")
    if p.draw.chance(75):
        p.elementwise("H", 'T.Cast("float16", C[vi, vj])', "float16", scope="inside")
        p.product("G", "H", "E", inside=False)
    else:
        p.product("G", "C", "E", inside=False)
    p.script.facts["untrue"] = ("tensor of its own first",)
    # sums of sums: still integers that float16 holds
    return p.draw.choose((("C", "G"), ("G", "C"), ("C",), ("G",)))


@program
def pair(p: Plan) -> tuple[str, ...]:
    """Make two products of one A."""
    p.product("C", inside=False)
    p.product("G", "A", "E", inside=False)
    return p.draw.choose((("C", "G"), ("G", "C"), ("C",)))


@program
def pair_in_one_block(p: Plan) -> tuple[str, ...]:
    """Write one block that sums two products."""
    p.product("C", inside=False)
    block = p.script.lines[-8:]
    p.script.tensor("G", [p.m, p.n], "float32")
    p.script.tensor("E", [p.n, p.k], "float16")
    update = block[-1].strip()
    again = update.replace("C[", "G[").replace("B[", "E[")
    p.script.lines[-1:] = [block[-1], block[-1].replace(update, again)]
    start = next(i for i, x in enumerate(p.script.lines) if "T.float32(0)" in x)
    p.script.lines.insert(start + 1, p.script.lines[start].replace("C[", "G["))
    return ("C",)


@program
def gated(p: Plan) -> tuple[str, ...]:
    """Gate as SwiGLU does, or take the sum of two products: two accumulators in one epilogue."""
    p.product("C")
    p.product("G", "A", "E")
    form = p.draw.choose(("C[vi, vj] + G[vi, vj]", "C[vi, vj] * T.sigmoid(C[vi, vj]) * G[vi, vj]"))
    p.script.facts["exact"] = "sigmoid" not in form
    p.elementwise("D", form)
    return p.draw.choose((("C",), ("G",), ("C", "G"), ("G", "C")))


@program
def softmax(p: Plan) -> tuple[str, ...]:
    """Put row reductions behind the product."""
    p.product("C")
    p.reduction("M", "T.float32(-100000)", "T.max(M[vi], C[vi, vj])", "inside")
    p.elementwise("X", "T.exp(C[vi, vj] - M[vi])", scope="inside")
    p.reduction("S", "T.float32(0)", "S[vi] + X[vi, vj]", "inside")
    p.elementwise("D", "X[vi, vj] / S[vi]")
    p.script.facts["exact"] = False
    return ("C",)


@program
def reduction_behind(p: Plan) -> tuple[str, ...]:
    """Sum each row of the product, left alone or bound to threads."""
    p.product("C", inside=p.draw.chance(50))
    p.reduction("S", "T.float32(0)", "S[vi] + C[vi, vj]")
    if p.draw.chance(40):
        p.bind("S")
    return ("C",)


@program
def beside(p: Plan) -> tuple[str, ...]:
    """Put a block that has nothing to do with the product, left alone or bound to threads."""
    form = p.draw.choose(("elementwise", "reduction", "two stores", "if"))
    p.script.tensor("X", [p.m, p.n], "float32")
    if p.draw.chance(50):
        p.product("C", inside=False)
    if form == "reduction":
        p.reduction("Y", "T.float32(0)", "Y[vi] + X[vi, vj]")
    elif form == "two stores":
        p.script.tensor("Y", [p.m, p.n], "float32")
        p.script.tensor("Z", [p.m, p.n], "float32")
        lines = ["Y[vi, vj] = X[vi, vj] + T.float32(1)", "Z[vi, vj] = X[vi, vj] * T.float32(2)"]
        p.script.block("Y", ["i", "j"], [p.m, p.n], lines)
    elif form == "if":
        p.script.tensor("Y", [p.m, p.n], "float32")
        lines = ["if X[vi, vj] > T.float32(0):", "    Y[vi, vj] = X[vi, vj]"]
        p.script.block("Y", ["i", "j"], [p.m, p.n], lines)
    else:
        p.elementwise("Y", "X[vi, vj] * T.float32(2)")
    if all(t.name != "C" for t in p.script.tensors):
        p.product("C", inside=False)
    if p.draw.chance(35):
        p.bind("Y")
    return ("C",)


@program
def two_stores_behind(p: Plan) -> tuple[str, ...]:
    """Follow the product by a block with two stores, an `if`, or a part of the rows."""
    p.product("C")
    p.script.tensor("D", [p.m, p.n], "float32")
    form = p.draw.choose(("two", "if", "where", "part"))
    lines, rows = ["D[vi, vj] = C[vi, vj]"], p.m
    if form == "two":
        p.script.tensor("E", [p.m, p.n], "float32")
        lines.append("E[vi, vj] = C[vi, vj] * T.float32(2)")
    elif form == "if":
        zero = "T.float32(0)"
        lines = [f"if C[vi, vj] > {zero}:", *indent(lines), "else:", f"    D[vi, vj] = {zero}"]
    elif form == "where":
        lines.insert(0, "T.where(i < j)")
    else:
        rows = p.m - 20
    p.script.block("D", ["i", "j"], [rows, p.n], lines)
    return ("C",)


@program
def in_place(p: Plan) -> tuple[str, ...]:
    """Read the output, write an operand, or scatter rows."""
    form = p.draw.choose(
        ("D[vi, vj] + C[vi, vj]", "D[vi, {n} - vj] + C[vi, vj]", "operand", "rows")
    )
    if form == "operand":
        p.m = p.n = p.k = p.draw.choose((64, 128))
        p.product("C")
        p.script.block("D", ["i", "j"], [p.m, p.n], ['A[vi, vj] = T.Cast("float16", C[vi, vj])'])
        p.script.facts["fills"] = {"A": "rng.integers(-1, 2, shape)"}
        return ("C",)
    p.product("C")
    if form == "rows":
        p.script.tensor("rows", [p.m], "int32")
        p.script.tensor("D", [p.m, p.n], "float32")
        p.script.facts["fills"] = {"rows": "rng.permutation(shape[0])"}
        p.script.block("D", ["i", "j"], [p.m, p.n], ["D[rows[vi], vj] = C[vi, vj]"])
    else:
        p.elementwise("D", form.format(n=p.n - 1))
    return ("C",)


@program
def rotary(p: Plan) -> tuple[str, ...]:
    """Read two columns of the product."""
    p.product("C")
    p.script.tensor("cosine", [p.m, p.n], "float32")
    other = f"C[vi, (vj + {p.n // 2}) % {p.n}]"
    p.elementwise("D", f"C[vi, vj] * cosine[vi, vj] + {other}")
    return ("C",)


@program
def scalar_argument(p: Plan) -> tuple[str, ...]:
    """Take a number that the caller passes."""
    p.product("C")
    p.script.scalars["alpha"] = 3
    p.elementwise("D", 'C[vi, vj] * T.Cast("float32", alpha)')
    return ("C",)


@program
def loop_around(p: Plan) -> tuple[str, ...]:
    """Put a loop around the whole product."""
    p.script.lines.append("for t in range(2):")
    start = len(p.script.lines)
    p.product("C", inside=False)
    p.script.lines[start:] = indent(p.script.lines[start:])
    return ("C",)


@program
def one_nest(p: Plan) -> tuple[str, ...]:
    """Make two products under the same outer loops."""
    for tensor, shape in (("A", [p.m, p.k]), ("B", [p.n, p.k]), ("E", [p.n, p.k])):
        p.script.tensor(tensor, shape, "float16")
    body = []
    for c, b in (("C", "B"), ("G", "E")):
        p.script.tensor(c, [p.m, p.n], "float32")
        x, y = 'T.Cast("float32", A[vi, vk])', f'T.Cast("float32", {b}[vj, vk])'
        body += [
            f"for k in range({p.k}):",
            f'    with T.sblock("{c}"):',
            '        vi, vj, vk = T.axis.remap("SSR", [i, j, k])',
            "        with T.init():",
            f"            {c}[vi, vj] = T.float32(0)",
            f"        {c}[vi, vj] = {c}[vi, vj] + {x} * {y}",
        ]
    p.script.loops([("i", 0, p.m), ("j", 0, p.n)], body)
    return p.draw.choose((("C",), ("C", "G")))


@program
def same_block_twice(p: Plan) -> tuple[str, ...]:
    """Ask for a block that is scheduled already."""
    p.product("C", inside=False)
    return ("C", "C")


@program
def vector(p: Plan) -> tuple[str, ...]:
    """Multiply a matrix by a vector."""
    p.script.tensor("A", [p.m, p.k], "float16")
    p.script.tensor("B", [p.k], "float16")
    p.script.tensor("C", [p.m], "float32")
    value = 'C[vi] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vk])'
    body = ["with T.init():", "    C[vi] = T.float32(0)", f"C[vi] = {value}"]
    p.script.block("C", ["i", "k"], [p.m, p.k], body, "SR")
    return ("C",)


def make(draw: Draw) -> Case:
    """Make one case."""
    write = draw.choose(list(PROGRAMS.values()))
    config = draw.choose(CONFIGS)
    plan = Plan(draw, Script(draw.choose(("int32", "int64"), (80, 20))), *draw.choose(SIZES))
    blocks = write(plan)
    steps = [
        *map(Step, plan.before),
        *(matmul_step(block, dict(config)) for block in blocks),
        *map(Step, plan.after),
    ]
    return Case(
        plan.script.program(),
        tuple(steps),
        kernels=len(set(blocks)),
        policy=draw.choose(POLICIES),
        verify=draw.chance(8),
        cubin=draw.chance(15),
    )
