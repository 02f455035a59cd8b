"""Arguments of a program, and what stock TVM computes from them on the CPU.

The reference is the plain module, built for llvm. It runs twice, over two poisons: an output that
comes out differently keeps, or reads, what was there before, and is given values then, so that what
a program leaves alone has to stay untouched in the kernel too.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm.script
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.testing.workloads import numpy_type

from .case import Program, View

# With -O3 the LLVM in the wheel does not come back from some loops over halves.
CPU = {"kind": "llvm", "opt-level": 2}
POISONS = (-77, 55)
HELD = "rng.integers(-5, 6, shape)"  # values of an output that the program leaves in part, or reads
OPERAND = "rng.integers(-2, 3, shape)"
WITHOUT_ZERO = "rng.choice([-2, -1, 1, 2], shape)"  # TVM's llvm reads a zero of float8 as 2^-7
SLACK = 8  # roundings of the coarsest type that an inexact result may be off by


class Invalid(Exception):
    """Stock TVM does not take the program: the generator's fault."""


@dataclass(frozen=True)
class Argument:
    """One argument of "main"; `shape` is None for a scalar."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Reference:
    """Inputs of a run, and the outputs that are right; `bounds` is how far off each may be."""

    inputs: dict[str, Any]
    outputs: dict[str, np.ndarray]
    bounds: dict[str, np.ndarray]


def read(program: Program, compact: bool = False) -> Any:
    """Parse a program."""
    try:
        return tvm.script.from_source(program.compact if compact else program.text)
    except Exception as error:
        raise Invalid(f"parse: {type(error).__name__}: {str(error)[-400:]}") from error


def arguments(mod: Any, extents: dict[str, int]) -> list[Argument]:
    """Return the arguments of "main" in order."""
    found = []
    for param in mod["main"].params:
        if not tirx.is_buffer_var(param):
            found.append(Argument(str(param.name), str(param.ty.dtype), None))
            continue
        shape = tuple(_value(extent, extents) for extent in param.ty.shape)
        found.append(Argument(str(param.name), ir.dtype_of(param), shape))
    return found


def _value(extent: Any, extents: dict[str, int]) -> int:
    named = {var: extents[str(var.name)] for var in ir.find_all(extent, ir.Var)}
    return int(ir.simplify(ir.substitute(extent, named)))


def written(mod: Any) -> set[str]:
    """Return the names of all tensors that "main" stores into."""
    return {str(store.buffer.name) for store in ir.find_all(mod["main"].body, ir.BufferStore)}


def fill(expression: str, argument: Argument, position: int) -> np.ndarray:
    """Evaluate the values of one argument, always alike."""
    scope = {"rng": np.random.default_rng(position), "shape": argument.shape, "np": np}
    return np.asarray(eval(expression, scope)).astype(numpy_type(argument.dtype))


def lay_out(values: np.ndarray, view: View, poison: int) -> tuple[np.ndarray, np.ndarray]:
    """Put values where a view says; return it and the allocation around it, poison elsewhere."""
    last = sum((n - 1) * s for n, s in zip(values.shape, view.strides, strict=True))
    base = np.full(view.offset + last + 9, poison).astype(values.dtype)
    strides = tuple(s * values.itemsize for s in view.strides)
    inside = np.lib.stride_tricks.as_strided(base[view.offset :], values.shape, strides)
    inside[...] = values
    return inside, base


def check(mod: Any) -> None:
    """Let stock TVM build a module."""
    try:
        tvm.compile(mod, target=CPU)
    except Exception as error:
        raise Invalid(f"llvm: {type(error).__name__}: {str(error)[-400:]}") from error


def run_on_cpu(mod: Any, args: list[Argument], inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Build a module for llvm and run it; return every tensor as it is afterwards."""
    try:
        library = tvm.compile(mod, target=CPU)
        values = [
            inputs[a.name] if a.shape is None else tvm.runtime.tensor(inputs[a.name]) for a in args
        ]
        library["main"](*values)
    except Exception as error:
        raise Invalid(f"llvm: {type(error).__name__}: {str(error)[-400:]}") from error
    return {a.name: v.numpy() for a, v in zip(args, values, strict=True) if a.shape is not None}


def with_initial_values(mod: Any) -> Any:
    """Let sums over nothing hold their initial value: inside of the loop it would not be stored."""
    sch = s_tir.Schedule(mod)
    names = [
        str(block.name_hint)
        for block in ir.find_all(mod["main"].body, ir.SBlock, lambda x: x.init is not None)
    ]
    for name in names:
        try:
            block = sch.get_sblock(name)
            sch.decompose_reduction(block, sch.get_loops(block)[0])
        except (s_tir.ScheduleError, tvm.error.InternalError, IndexError):
            continue  # two of one name, bound loops, no loop: as it stands
    return sch.mod


def operand(dtype: str) -> str:
    """Return the expression that fills a tensor of a type."""
    return WITHOUT_ZERO if dtype.startswith("float8") else OPERAND


def reference(program: Program) -> Reference:
    """Run the plain program on the CPU, and say what an output may differ by."""
    mod = read(program, bool(program.compact))
    if 0 in program.extents.values():
        mod = with_initial_values(mod)
    args = arguments(mod, program.extents)
    outputs = sorted(written(mod) & {a.name for a in args})
    inputs: dict[str, Any] = {}
    for position, a in enumerate(args):
        if a.shape is None:
            inputs[a.name] = program.extents[a.name]
        elif a.name not in outputs or a.name in program.fills:
            inputs[a.name] = fill(program.fills.get(a.name, operand(a.dtype)), a, position)
    results = []
    for poison in POISONS:
        start = {
            a.name: np.full(a.shape, poison).astype(numpy_type(a.dtype))
            for a in args
            if a.shape is not None
        }
        results.append(run_on_cpu(mod, args, {**start, **inputs}))
    first, second = results
    held = [name for name in outputs if not _same(first[name], second[name]).all()]
    if held:
        for position, a in enumerate(args):
            if a.name in held:
                inputs[a.name] = fill(HELD, a, position)
        start = {a.name: np.full(a.shape, -77).astype(numpy_type(a.dtype)) for a in args if a.shape}
        first = run_on_cpu(mod, args, {**start, **inputs})
    right = {name: first[name] for name in outputs}
    if program.exact:
        return Reference(inputs, right, {name: np.zeros(()) for name in outputs})
    return Reference(inputs, right, _bounds(program, args, inputs, right))


def _bounds(
    program: Program, args: list[Argument], inputs: dict[str, Any], right: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Bound the error of each output: the program in float64, and what rounding cost the program.

    A kernel may round as often as the program does, at other places: it may be off by a few
    roundings of the coarsest type, and by a few times what the program itself is off.
    """
    text, coarse = program.compact or program.text, _epsilon(program.rounds)
    exact_text = re.sub(r'"(b?float)\d+(_e\dm\d\w*)?"', '"float64"', text)
    exact_text = re.sub(r"T\.b?float\d+\(", "T.float64(", exact_text)
    wide = [Argument(a.name, "float64" if "float" in a.dtype else a.dtype, a.shape) for a in args]
    values: dict[str, Any] = {}
    for a in wide:
        if a.shape is None:
            values[a.name] = inputs[a.name]
        else:
            given = inputs.get(a.name, np.zeros(a.shape))
            values[a.name] = given.astype(numpy_type(a.dtype))
    mod = tvm.script.from_source(exact_text)
    if 0 in program.extents.values():
        mod = with_initial_values(mod)
    exact = run_on_cpu(mod, wide, values)
    bounds = {}
    for name, value in right.items():
        true = exact[name].astype("float64")
        own = np.abs(value.astype("float64") - true)
        bounds[name] = SLACK * coarse * np.maximum(1, np.abs(true)) + 4 * own
    return bounds


def _epsilon(dtype: str) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def _same(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    x, y = got.astype("float64"), want.astype("float64")
    return (x == y) | (np.isnan(x) & np.isnan(y))


def difference(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> str:
    """Say how many elements differ by more than a bound, and where the first is."""
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    x, y = got.astype("float64"), want.astype("float64")
    with np.errstate(invalid="ignore"):
        right = _same(got, want) | (np.abs(x - y) <= bound)
    if right.all():
        return ""
    first = tuple(int(i[0]) for i in np.nonzero(~right))
    return (
        f"{int((~right).sum())} of {right.size} differ, first {first}: {x[first]}, not {y[first]}"
    )
