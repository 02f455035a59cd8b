"""What a kernel's caller has to know: parameters, their shapes, and which of them are results.

    A: (m, 256) float16, C: (m, 512) float32, results ("C",)

Extents are numbers, symbols or Python expressions of symbols ("2 * m"), so that a signature lives
without TVM's compiler. It is read off a PrimFunc, or off the host function of an executable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_hopper.errors import HopperError, cannot_schedule

Extent = int | str
WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    - `shape` (tuple of int or str, or None): None for a number.
    - `symbol`: the name by which shapes speak of a number.
    """

    name: str
    dtype: str
    shape: tuple[Extent, ...] | None = None
    symbol: str = ""


@dataclass(frozen=True)
class Signature:
    """The parameters of a kernel in order.

    Parameters
    ----------
    parameters : tuple of Parameter
        Tensors and numbers.
    outputs : tuple of str
        Tensors that the kernel fills.
    updated : tuple of str
        Tensors that it reads and writes.

    Raises
    ------
    ScheduleError
        A name is no tensor of the kernel, or a tensor is both.
    """

    parameters: tuple[Parameter, ...]
    outputs: tuple[str, ...]
    updated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        tensors = [x.name for x in self.parameters if x.shape is not None]
        results = [*self.outputs, *self.updated]
        if not results or not {*results} <= {*tensors} or len({*results}) < len(results):
            raise cannot_schedule(
                "torch.op", f"results {results}",
                f"some of the tensors {tensors}, each once", 'name them: outputs=("C",)',
            )  # fmt: skip

    @property
    def given(self) -> list[Parameter]:
        """Parameters that a caller of the operator passes."""
        return [x for x in self.parameters if x.name not in self.outputs]

    def places(self) -> dict[str, tuple[str, int | None]]:
        """Return where each symbol of a shape is found: a parameter and an axis, or a number.

        - raises ScheduleError: a result has an extent that no parameter says.
        """
        found: dict[str, tuple[str, int | None]] = {}
        for x in self.given:
            for axis, extent in enumerate(x.shape or ()):
                if isinstance(extent, str) and WORD.fullmatch(extent):
                    found.setdefault(extent, (x.name, axis))
            if x.symbol:
                found.setdefault(x.symbol, (x.name, None))
        for x in self.parameters:
            for extent in x.shape or () if x.name in self.outputs else ():
                missing = [y for y in WORD.findall(str(extent)) if y not in found | _FUNCTIONS]
                if missing:
                    raise cannot_schedule(
                        f"torch.op, result {x.name}", f"an extent {extent}",
                        f"{', '.join(missing)} as an extent of a tensor that is passed",
                    )  # fmt: skip
        return found


_FUNCTIONS: dict[str, tuple[str, int | None]] = {"min": ("", None), "max": ("", None)}


def signature_of(
    source: Any, function: str | None = None, outputs: Sequence[str] | None = None
) -> Signature:
    """Return the signature of a Schedule, an IRModule, a PrimFunc or an executable built here.

    - `outputs`: those of an executable, whose last tensor is its result by default.
    - raises HopperError: there is no such function, or it is not known what it takes.
    """
    from tvm import IRModule, s_tir, tirx

    if isinstance(source, s_tir.Schedule):
        source = source.mod
    if isinstance(source, IRModule):
        source = _one_function(source, function)
    if isinstance(source, tirx.PrimFunc):
        return _of_function(source, outputs)
    return _of_executable(source, function, outputs)


def _one_function(mod: Any, name: str | None) -> Any:
    from tvm import tirx

    named = {g.name_hint: f for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    if name is None and len(named) > 1:
        name = "main"
    chosen = named.get(name) if name is not None else next(iter(named.values()), None)
    if chosen is None:
        found = f"function={name!r}" if name is not None else "no function"
        raise cannot_schedule("torch.op", found, f"one of {', '.join(sorted(named)) or 'none'}")
    return chosen


def _of_function(func: Any, outputs: Sequence[str] | None) -> Signature:
    found = [_parameter(x.name, x.ty, getattr(x.ty, "shape", None)) for x in func.params]
    filled, updated = _results(func, {x.name: x for x in func.params})
    if outputs is not None:
        filled, updated = list(outputs), [x for x in (*filled, *updated) if x not in outputs]
    return Signature(tuple(found), tuple(filled), tuple(updated))


def _parameter(name: str, dtype: Any, shape: Any) -> Parameter:
    if shape is None:
        return Parameter(name, str(dtype), None, name)
    extents = tuple(x if isinstance(x, str) else _extent(name, x) for x in shape)
    return Parameter(name, str(getattr(dtype, "dtype", dtype)), extents)


def _results(func: Any, buffers: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the tensors that a function fills, and those that it reads before it writes them."""
    from tvm_hopper import ir

    first: dict[Any, str] = {}
    stored: set[Any] = set()

    def load(node: Any) -> None:
        first.setdefault(node.source, "load")

    def store(node: Any) -> None:
        for inner in ir.find_all([node.value, *node.indices], ir.TensorLoad):
            load(inner)
        first.setdefault(node.buffer, "store")
        stored.add(node.buffer)

    def block(node: Any) -> None:
        for region in node.writes if node.init is not None else ():
            first.setdefault(region.source, "store")  # its init comes first

    ir.visit(func.body, [(ir.SBlock, block), (ir.TensorLoad, load), (ir.BufferStore, store)])
    written = [name for name, x in buffers.items() if x in stored]
    filled = [x for x in written if first[buffers[x]] == "store"]
    return filled, [x for x in written if x not in filled]


def _extent(name: str, value: Any) -> Extent:
    from tvm import ir, tirx

    signs = {tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.FloorDiv: "//", tirx.FloorMod: "%"}
    functions = {tirx.Min: "min", tirx.Max: "max"}

    def text(node: Any) -> str:
        if isinstance(node, tirx.IntImm):
            return str(int(node))
        if isinstance(node, ir.Var):
            return str(node.name)
        if isinstance(node, tirx.Cast):
            return text(node.value)
        if type(node) in signs:
            return f"({text(node.a)} {signs[type(node)]} {text(node.b)})"
        if type(node) in functions:
            return f"{functions[type(node)]}({text(node.a)}, {text(node.b)})"
        need = "sums, products, quotients, least and largest of numbers and symbols"
        raise cannot_schedule(f"torch.op, tensor {name}", f"an extent {value}", need)

    return int(value) if isinstance(value, (int, tirx.IntImm)) else text(value)


def _of_executable(
    executable: Any, function: str | None, outputs: Sequence[str] | None
) -> Signature:
    from tvm_hopper.verification.program import load

    try:
        program = load(executable, entry=function)
    except (HopperError, TypeError) as error:
        raise cannot_schedule(
            "torch.op", f"{type(executable).__name__}, of which nothing is known ({error})",
            "a Schedule, an IRModule, an executable that this process built, or a signature",
            "pass signature=tvm_hopper.torch.Signature(...)",
        ) from error  # fmt: skip
    found = [_parameter(x.name, x.dtype, x.shape) for x in program.arguments]
    if outputs is None:
        last = next((x.name for x in reversed(found) if x.shape is not None), "")
        _check_last(program, last)
        outputs = (last,)
    return Signature(tuple(found), tuple(outputs))


def _check_last(program: Any, name: str) -> None:
    """Refuse to guess where the last tensor is read, too."""
    from tvm_hopper import ir

    def is_read(load: Any) -> bool:
        return bool(load.source.name == name and load.source.scope() in ("", "global"))

    if any(ir.has_any(x.body, ir.TensorLoad, is_read) for x in program.kernels.values()):
        raise cannot_schedule(
            "torch.op", f"an executable that reads its last tensor {name}", "its results by name",
            'pass outputs=("C",), or the module that it was built from',
        )  # fmt: skip
