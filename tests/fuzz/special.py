"""Random programs over special values, on a GPU: infinities, NaN, -0, denormals, masked rows.

    python -m tests.fuzz.special --seed 7 --count 200               # needs a Hopper GPU
    python -m tests.fuzz.special --seed 7 --count 200 --build-only  # anywhere: do they build?

Each program is a Relax function and the same steps in numpy, three times: in float64, with each
step rounded to the program's type, and likewise but for products that are added to, which a
compiler may fuse. An element is right if it is near to the first, by what rounding costs one of the
others, float32 a sum in any order, and one unit in the last place of each step the steps behind it,
or near to one of the others; NaN and infinities have to be those of one of them.

Only kernels of ours are judged. What TVM's reductions mean is taken for right: they begin with the
least finite number, so log-sum-exp of a row of -inf is -inf, and places of rows with NaN are any.
"""

import argparse
import math
import multiprocessing
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tvm_hopper.testing.workloads import numpy_type

TARGET = "nvidia/nvidia-h200"
ANY_PLACE, TVMS = -1, "with a kernel of TVM's"
SLACK = 8  # roundings of the program's type
FLOATS = ("float32", "float32", "bfloat16", "float16")
ROW_KINDS = (
    "plain", "plain", "nan", "inf", "-inf", "all -inf", "all lowest", "masked", "masked -inf",
    "constant", "denormal", "zeros", "limit", "large",
)  # fmt: skip
NOT_SUMMED = ("all lowest", "limit")  # sums of these depend on their order
erf = np.vectorize(math.erf, otypes=["float64"])


@dataclass
class Program:
    """Steps over tensors: (operator, operands by number, attributes); inputs come first."""

    seed: int
    dtype: str
    shapes: list[tuple[int, ...]]
    steps: list[tuple[str, tuple[int, ...], dict[str, Any]]] = field(default_factory=list)
    summed: bool = False

    def do(self, op: str, *operands: int, **attributes: Any) -> int:
        """Append a step; return its number."""
        self.steps.append((op, operands, attributes))
        return len(self.shapes) + len(self.steps) - 1

    def __str__(self) -> str:
        """Print the steps on one line."""
        lines = [f"x{i}: {shape}" for i, shape in enumerate(self.shapes)]
        for i, (op, operands, attributes) in enumerate(self.steps, len(self.shapes)):
            given = [f"x{k}" for k in operands] + [f"{k}={v}" for k, v in attributes.items()]
            lines.append(f"x{i} = {op}({', '.join(given)})")
        return f"seed {self.seed} {self.dtype}: " + "; ".join(lines)


# -- numpy ----------------------------------------------------------------------------------------


def _sum(x: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    """Sum; of float32 one element after another, which is as far off as any order may be."""
    if x.dtype == np.float64:
        return x.sum(axis, keepdims=keepdims)
    last = np.add.accumulate(x, axis=axis).take([-1], axis=axis)
    return last if keepdims else last.squeeze(axis)


def _mean(x: np.ndarray, axis: int = -1, keepdims: bool = False) -> np.ndarray:
    return _sum(x, axis, keepdims) / x.dtype.type(x.shape[axis])


def _place(found: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
    return np.where(np.isnan(x).any(axis), ANY_PLACE, found)


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / _sum(e, axis, True)


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    s = x - x.max(axis, keepdims=True)
    return s - np.log(_sum(np.exp(s), axis, True))


def _log_sum_exp(x: np.ndarray) -> np.ndarray:
    largest = x.max(-1, keepdims=True)
    if x.dtype == np.float64:  # elsewhere a row of -inf gives NaN, which is right, too
        largest = np.maximum(largest, ml_dtypes.finfo("float32").min)
    return np.log(_sum(np.exp(x - largest), -1, True)) + largest


def _layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    d = x - _mean(x, keepdims=True)
    return d / np.sqrt(_mean(d * d, keepdims=True) + 1e-5) * w + b


NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "maximum": np.maximum, "minimum": np.minimum, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh, "abs": np.abs, "negative": np.negative,
    "floor": np.floor, "ceil": np.ceil, "round": np.round, "erf": erf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + erf(x * math.sqrt(0.5))), "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x, low, high: np.clip(x, low, high), "scale": lambda x, by: x * by,
    "where": lambda x, y, z: np.where(x > y, x, z),
    "sum": _sum, "mean": _mean,
    "max": lambda x, axis: x.max(axis), "min": lambda x, axis: x.min(axis),
    "argmax": lambda x, axis: _place(x.argmax(axis), x, axis),
    "argmin": lambda x, axis: _place(x.argmin(axis), x, axis),
    "softmax": _softmax, "log_softmax": _log_softmax, "layer_norm": _layer_norm,
    "rms_norm": lambda x, w: x / np.sqrt(_mean(x * x, keepdims=True) + 1e-5) * w,
    "logsumexp": _log_sum_exp,
    "product": lambda x, w: x @ w.T,
}  # fmt: skip


MAGNITUDES: dict[str, Callable[..., np.ndarray]] = {
    "sum": lambda x, axis: np.abs(x).sum(axis),
    "mean": lambda x, axis: np.abs(x).mean(axis),
    "product": lambda x, w: np.abs(x) @ np.abs(w).T,
    "layer_norm": lambda x, w, _: (
        np.abs(x).mean(-1, keepdims=True) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * np.abs(w)
    ),
}


def evaluate(
    program: Program,
    inputs: list[np.ndarray],
    rounded: bool,
    fused: bool = False,
    moved: tuple[int, float] = (0, 0.0),
) -> np.ndarray:
    """Run the steps in numpy: in float64, or each result rounded to the program's type.

    With `fused` a product that is added or subtracted is not rounded in between: as by fma. `moved`
    is the number of one result, and what part of itself is added to it.
    """
    wide = "float32" if rounded else "float64"
    known = [x.astype(wide) for x in inputs]
    products: dict[int, np.ndarray] = {}  # exact
    with np.errstate(all="ignore"):
        for op, operands, attributes in program.steps:
            given = [known[i] for i in operands]
            if fused and op in ("add", "subtract"):
                given = [products.get(i, known[i]).astype("float64") for i in operands]
            elif fused and op in ("scale", "multiply"):
                wider = [x.astype("float64") for x in given]
                products[len(known)] = np.asarray(NUMPY[op](*wider, **attributes))
            value = np.asarray(NUMPY[op](*given, **attributes))
            if value.dtype.kind == "f":
                value = value.astype(numpy_type(program.dtype)).astype(wide) if rounded else value
                value = value * (1 + moved[1]) if moved[0] == len(known) else value
            known.append(value)
    return known[-1]


def summed_magnitudes(program: Program, inputs: list[np.ndarray]) -> np.ndarray:
    """Return what a program's sum is of its terms' magnitudes: 0 where that is no number.

    Sums are of inputs, and no step behind one moves a result by much more than its operand.
    """
    op, operands, attributes = program.steps[0]
    if op not in MAGNITUDES:
        return np.zeros(())
    with np.errstate(all="ignore"):
        found = MAGNITUDES[op](*(inputs[i].astype("float64") for i in operands), **attributes)
    return np.where(np.isfinite(found), found, 0)


def moved_by_steps(program: Program, inputs: list[np.ndarray], exact: np.ndarray) -> np.ndarray:
    """Return by how much a unit in the last place of each step before the last moves the result.

    `x - silu(x)` of 7 is 0.006, and has one of 7.
    """
    eps, first = float(ml_dtypes.finfo(program.dtype).eps), len(program.shapes)
    total = np.zeros(exact.shape)
    with np.errstate(all="ignore"):
        for step in range(first, first + len(program.steps) - 1):
            ways = [evaluate(program, inputs, False, moved=(step, x)) for x in (eps, -eps)]
            by = np.maximum(*(np.abs(x.astype("float64") - exact) for x in ways))
            total += np.where(np.isfinite(by), by, 0)
    return total


def wrong(
    got: np.ndarray,
    exact: np.ndarray,
    rounded: np.ndarray,
    dtype: str,
    magnitudes: np.ndarray | float = 0.0,
    moved: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Return where a result is neither near to the exact one nor to the rounded one."""
    if got.dtype.kind in "iu":
        return (got != exact) & (got != rounded) & (exact != ANY_PLACE)
    info = ml_dtypes.finfo(dtype)
    eps, limit = float(info.eps), float(info.max)
    least = SLACK * 2.0**-24 * (1 + magnitudes)  # what is computed in float32 may cancel
    g, e, r = (x.astype("float64") for x in (got, exact, rounded))
    with np.errstate(all="ignore"):
        rounding = np.maximum(np.where(np.isfinite(r), 4 * np.abs(r - e), 0), moved)
        near_exact = np.abs(g - e) <= SLACK * eps * np.abs(e) + rounding + least
        near_rounded = np.abs(g - r) <= SLACK * eps * np.abs(r) + least
        near_exact, near_rounded = near_exact & np.isfinite(e), near_rounded & np.isfinite(r)
        # an infinity, or the number that a greatest or least one begins with
        over = (np.abs(g) >= limit) & (np.abs(e) >= limit * (1 - SLACK * eps))
        over &= np.sign(g) == np.sign(e)
    nan = np.isnan(g) & (np.isnan(e) | np.isnan(r))
    return ~(near_exact | near_rounded | over | nan | (g == e) | (g == r))


# -- Relax ----------------------------------------------------------------------------------------


def relax_module(program: Program) -> Any:
    """Return the program as a Relax module with the function "main"."""
    from tvm import relax

    op, bb = relax.op, relax.BlockBuilder()

    def log_sum_exp(x: Any) -> Any:
        largest = op.max(x, -1, True)
        return op.add(op.log(op.sum(op.exp(op.subtract(x, largest)), -1, True)), largest)

    table: dict[str, Callable[..., Any]] = {
        "relu": op.nn.relu, "silu": op.nn.silu, "gelu": op.nn.gelu, "softmax": op.nn.softmax,
        "log_softmax": op.nn.log_softmax, "clip": lambda x, low, high: op.clip(x, low, high),
        "scale": lambda x, by: op.multiply(x, relax.const(by, program.dtype)),
        "where": lambda x, y, z: op.where(op.greater(x, y), x, z),
        "layer_norm": lambda x, w, b: op.nn.layer_norm(x, w, b, -1, 1e-5),
        "rms_norm": lambda x, w: op.nn.rms_norm(x, w, -1, 1e-5),
        "logsumexp": log_sum_exp,
        "product": lambda x, w: op.matmul(x, op.permute_dims(w)),
    }  # fmt: skip
    types = [relax.TensorType(shape, program.dtype) for shape in program.shapes]
    given = [relax.Var(f"x{i}", kind) for i, kind in enumerate(types)]
    with bb.function("main", given):
        with bb.dataflow():
            known: list[Any] = list(given)
            for name, operands, attributes in program.steps:
                call = table.get(name) or getattr(op, name)
                known.append(bb.emit(call(*(known[i] for i in operands), **attributes)))
            out = bb.emit_output(known[-1])
        bb.emit_func_output(out)
    return bb.finalize()


# -- drawing --------------------------------------------------------------------------------------

UNARY = (
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "tanh",
    "abs",
    "negative",
    "erf",
    "sigmoid",
    "silu",
    "gelu",
    "relu",
)
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")


def draw(seed: int) -> Program:
    """Draw one program."""
    rng = random.Random(seed)
    rows, columns = (
        rng.choice((1, 3, 16, 65, 200)),
        rng.choice((8, 31, 64, 256, 1000, 1024, 4096, 4571, 40000)),
    )
    family = rng.choices(
        ("elements", "exponentials", "sums", "axes", "product"), (35, 25, 15, 10, 15)
    )[0]
    program = Program(seed, rng.choice(FLOATS), [(rows, columns)])
    {
        "elements": _elements, "exponentials": _exponentials, "sums": _sums, "axes": _axes,
        "product": _product,
    }[family](program, rng)  # fmt: skip
    return program


def _elements(program: Program, rng: random.Random) -> None:
    program.shapes += [program.shapes[0]] * rng.randint(0, 2)
    inputs = len(program.shapes)
    at = rng.randrange(inputs)
    if rng.random() < 0.2:
        at = program.do(rng.choice(("floor", "ceil", "round")), at)
    elif rng.random() < 0.2 and inputs > 1:
        at = program.do("where", 0, 1, inputs - 1)
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.5:
            at = program.do(rng.choice(UNARY), at)
        elif kind < 0.85:
            op, other = rng.choice(BINARY), rng.randrange(inputs)
            if (op, other) == ("subtract", at):
                continue  # TVM's simplifier makes a zero of x - x, also where x is no number
            at = program.do(op, at, other)
        elif kind < 0.95:
            at = program.do("clip", at, low=-1.5, high=2.0)
        elif inputs > 1 and at < inputs:
            squares = [program.do("multiply", i, i) for i in (0, 1)]
            at = program.do("sqrt", program.do("subtract", *squares))
    if at < inputs:
        program.do("negative", at)


def _exponentials(program: Program, rng: random.Random) -> None:
    at = 0
    if rng.random() < 0.6:
        at = program.do("scale", at, by=rng.choice((0.375, 0.125, 1.75, -0.6875)))
    if rng.random() < 0.4:
        program.shapes.append(rng.choice((program.shapes[0], (1, program.shapes[0][1]))))
        steps, program.steps = program.steps, []
        at = 0
        for op, _, attributes in steps:
            at = program.do(op, at, **attributes)
        at = program.do("add", at, 1)
    last = rng.choice(
        ("softmax", "softmax", "log_softmax", "logsumexp", "max", "min", "argmax", "argmin")
    )
    program.do(last, at, **({} if last == "logsumexp" else {"axis": -1}))


def _sums(program: Program, rng: random.Random) -> None:
    program.summed = True
    last, columns = rng.choice(("sum", "mean", "layer_norm", "rms_norm")), program.shapes[0][1:]
    if last.endswith("norm"):
        program.shapes += [columns] * (2 if last == "layer_norm" else 1)
        program.do(last, *range(len(program.shapes)))
    else:
        program.do(last, 0, axis=-1)


def _axes(program: Program, rng: random.Random) -> None:
    rows, columns = program.shapes[0]
    program.shapes[0] = (rng.choice((1, 4)), rows, min(columns, 1024))
    last = rng.choice(("max", "min", "sum", "argmax", "softmax"))
    program.summed = last == "sum"
    program.do(last, 0, axis=rng.choice((0, 1)))


def _product(program: Program, rng: random.Random) -> None:
    program.dtype, program.summed = rng.choice(("float16", "bfloat16")), True
    rows, columns = rng.choice((1, 16, 100, 128, 300)), rng.choice((64, 128, 200, 256))
    depth = rng.choice((64, 128, 320))
    program.shapes = [(rows, depth), (columns, depth)]
    bias = rng.random() < 0.5
    if bias:
        program.shapes.append((columns,))
    at = program.do("product", 0, 1)
    if bias:
        at = program.do("add", at, 2)
    last = rng.choice(("relu", "clip", "gelu", "silu", "maximum", ""))
    if last == "clip":
        program.do("clip", at, low=-3.0, high=3.0)
    elif last == "maximum":
        program.do("maximum", at, at)
    elif last:
        program.do(last, at)


def values(program: Program) -> list[np.ndarray]:
    """Draw the inputs: each row of the last dimension has one kind of special values."""
    rng = np.random.default_rng(program.seed)
    made = []
    for position, shape in enumerate(program.shapes):
        x = rng.standard_normal(shape) * (0.3 if program.steps[0][0] == "product" else 2)
        flat = x.reshape(-1, shape[-1])
        for row in flat:
            kinds = [k for k in ROW_KINDS if not (program.summed and k in NOT_SUMMED)]
            if position and rng.random() < 0.7:
                continue  # most of what stands beside is plain
            _special(row, str(rng.choice(kinds)), rng, program.dtype)
        with np.errstate(over="ignore"):
            made.append(x.astype(numpy_type(program.dtype)))
    return made


def _special(row: np.ndarray, kind: str, rng: np.random.Generator, dtype: str) -> None:
    info, at = ml_dtypes.finfo(dtype), rng.integers(row.size)
    lowest = float(info.min)
    if kind in ("nan", "inf", "-inf"):
        row[at] = float(kind)
    elif kind == "limit":
        row[at] = rng.choice((lowest, -lowest, float(info.tiny), float(info.smallest_subnormal)))
    elif kind.startswith("all"):
        row[:] = lowest if "lowest" in kind else -np.inf
    elif kind.startswith("masked"):
        row[rng.random(row.size) < 0.5] = -np.inf if "inf" in kind else -1e4
    elif kind == "constant":
        row[:] = row[0]
    elif kind == "denormal":
        row *= float(info.smallest_subnormal) * 5
    elif kind == "zeros":
        row[:] = np.where(rng.random(row.size) < 0.5, 0.0, -0.0)
    elif kind == "large":
        row *= 1e3


# -- running --------------------------------------------------------------------------------------


def build(seed: int) -> tuple[int, str, bytes]:
    """Build one program: its seed; "", an error or whose kernel it is; the library exported."""
    import tempfile

    from tvm import relax

    from tvm_hopper.relax import report
    from tvm_hopper.relax.records import OURS

    warnings.simplefilter("ignore")
    try:
        executable = relax.build(
            relax_module(draw(seed)), target=TARGET, relax_pipeline="tvm_hopper"
        )
        if {x.computed_by for x in report(executable).functions} != {OURS}:
            return seed, TVMS, b""
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            executable.export_library(file.name)
            return seed, "", file.read()
    except Exception as error:
        return seed, f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:300]}", b""


def run(program: Program, library: bytes) -> np.ndarray:
    """Run a built program on the device."""
    import tempfile

    import tvm
    from tvm import relax

    device = tvm.cuda(0)
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        machine = relax.VirtualMachine(tvm.runtime.load_module(file.name), device)
        return machine["main"](*(tvm.runtime.tensor(x, device) for x in values(program))).numpy()


def judge(program: Program, got: np.ndarray) -> str:
    """Return "" or where a result is wrong."""
    inputs = values(program)
    exact, rounded = evaluate(program, inputs, False), evaluate(program, inputs, True)
    ways = rounded, evaluate(program, inputs, True, fused=True)
    if got.shape != exact.shape:
        return f"shape {got.shape} instead of {exact.shape}"
    magnitudes = summed_magnitudes(program, inputs)

    def find(moved: np.ndarray | float) -> Any:
        each = [wrong(got, exact, way, program.dtype, magnitudes, moved) for way in ways]
        return np.logical_and.reduce(each)

    found = find(0.0)
    if found.any():
        found = find(moved_by_steps(program, inputs, exact))
    if program.summed:  # a difference of equal numbers, times an infinity: its sign is any
        found &= ~(np.isnan(exact) & np.isinf(rounded) & np.isinf(got))
    bad = np.argwhere(found)
    if not len(bad):
        return ""
    at = tuple(int(i) for i in bad[0])
    wanted = f"exact {exact[at]}, rounded {rounded[at]}"
    return f"{len(bad)} of {got.size} wrong, first at {at}: {got[at]}, {wanted}"


def outcomes(seeds: list[int], jobs: int, build_only: bool) -> Iterator[tuple[str, str]]:
    """Build, run and judge; yield (class, text) of each."""
    # CUDA does not live through a fork
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for seed, error, library in pool.map(build, seeds):
            program = draw(seed)
            if error == TVMS:
                yield error, ""
                continue
            if error:
                yield "no build", f"{program}\n    {error}"
                continue
            if build_only:
                yield "built", ""
                continue
            try:
                text = judge(program, run(program, library))
            except Exception:
                text = "run: " + traceback.format_exc().strip().splitlines()[-1]
            yield ("wrong" if text else "right"), f"{program}\n    {text}"


def main() -> int:
    """Print what was wrong, and the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.special")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--build-only", action="store_true")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    first = args.seed * 1_000_000
    for kind, text in outcomes(list(range(first, first + args.count)), args.jobs, args.build_only):
        counts[kind] += 1
        if kind in ("wrong", "no build"):
            print(f"{kind.upper()} {text}", flush=True)
    print("special values:", ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    return 1 if counts["wrong"] or counts["no build"] else 0


if __name__ == "__main__":
    sys.exit(main())
