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
import multiprocessing
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.special_steps import Program, evaluate, moved_by_steps, summed_magnitudes, wrong
from tvm_hopper.testing.workloads import numpy_type

TARGET = "nvidia/nvidia-h200"
TVMS = "with a kernel of TVM's"
FLOATS = ("float32", "float32", "bfloat16", "float16")
ROW_KINDS = (
    "plain", "plain", "nan", "inf", "-inf", "all -inf", "all lowest", "masked", "masked -inf",
    "constant", "denormal", "zeros", "limit", "large",
)  # fmt: skip
NOT_SUMMED = ("all lowest", "limit")  # sums of these depend on their order


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
