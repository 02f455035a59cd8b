"""Cost of a model's calls for given sizes: FLOPs, bytes, and one estimate of the time.

Kernels of ours: a product takes the time that its choice was estimated at, for the rows that it was
chosen for.  With other rows it takes as much more or less as the roofline says.
Attention of known sizes takes the time of its choice, too.
Whatever else is ours moves its bytes at the rate of a copy.  What is accessed element by element
counts for as many bytes as memory hands out for each element, at least twice: rope took that long
(docs/memory_bound.md).

Kernels of others: a bound, the roofline without tensor cores for TVM's rules.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from math import prod

from tvm_hopper.facts.devices import DEFAULT_NUM_SMS, Chip

from .records import LIBRARY, OURS, CallRecord, FunctionRecord, KernelRecord
from .work import element_bytes

COPY_RATE = (
    4.28e6  # bytes a microsecond that a copy on an H200 reads and writes (docs/memory_bound.md)
)
LEAST = 1.5  # microseconds of the smallest kernel in a graph, an RMSNorm of one row
CORE_RATE = 67e6  # FLOPs a microsecond outside of tensor cores, float32 (H200's data sheet)
# FLOPs a microsecond that products reach, by bytes of an operand's element (docs/performance.md).
TENSOR_RATES = {1: 1200e6, 2: 670e6, 4: 350e6}
ON_TENSOR_CORES = ("Matmul", "Attention")  # rules
ASSUMED_LENGTH = 1024  # a symbol that no size is given for; one that counts sequences is 1

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}


@dataclass(frozen=True)
class Cost:
    """What some calls cost; None: not known.

    - `flops`, `num_bytes`: operations; bytes of tensors, each once.
    - `microseconds`: estimated, or measured.
    """

    flops: float | None = 0.0
    num_bytes: float | None = 0.0
    microseconds: float | None = 0.0

    def __add__(self, other: Cost) -> Cost:
        return _each(operator.add, self, other)

    def times(self, count: int) -> Cost:
        """Return the cost of so many calls."""
        return _each(operator.mul, self, Cost(count, count, count))


def _each(combine: Callable[[float, float], float], one: Cost, other: Cost) -> Cost:
    pairs = zip(astuple(one), astuple(other), strict=True)
    return Cost(*(None if None in pair else combine(*pair) for pair in pairs))


def value_of(text: str, sizes: Mapping[str, int]) -> int | None:
    """Evaluate an extent; None where it names a symbol without a value, or is no arithmetic."""

    def walk(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return sizes[node.id]
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return _FUNCTIONS[node.func.id](*map(walk, node.args))
        raise KeyError

    try:
        return walk(ast.parse(text, mode="eval").body)
    except (KeyError, SyntaxError, ZeroDivisionError):
        return None


def names_in(texts: Iterable[str]) -> set[str]:
    """Name the symbols in some extents."""
    names: set[str] = set()
    for text in texts:
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError:
            continue
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names - set(_FUNCTIONS)


def symbols_of(call: CallRecord) -> set[str]:
    """Name the symbols of a call's shapes."""
    return names_in([*(x for shape in call.shapes for x in shape), call.flops, call.num_bytes])


def assumed_sizes(functions: Iterable[FunctionRecord]) -> dict[str, int]:
    """Assume a value for each symbol: one sequence, of some length.

    A symbol counts sequences if tensors begin with it, alone or as a factor, and have it nowhere
    else.
    """
    leading: set[str] = set()
    inner: set[str] = set()
    for call in (x for function in functions for x in function.calls):
        for shape in filter(None, call.shapes):
            first, _, rest = shape[0].partition(" * ")
            leading |= names_in([first])
            inner |= names_in([rest, *shape[1:]])
        inner |= symbols_of(call) - names_in(x for shape in call.shapes for x in shape)
    return {x: ASSUMED_LENGTH if x in inner else 1 for x in sorted(leading | inner)}


def call_cost(
    record: FunctionRecord, call: CallRecord, sizes: Mapping[str, int], chip: Chip
) -> Cost:
    """Return the cost of one call of a function.

    - `record`: the function.
    - `call`: one of its calls.
    - `sizes`: values of the caller's symbols.
    - `chip`: that it runs on.
    """
    known = sizes_inside(record, call, sizes)
    flops = value_of(call.flops or record.flops, known)
    moved = value_of(call.num_bytes or record.num_bytes, known)
    if moved is None:
        return Cost(flops, None, None)
    if record.computed_by == OURS:
        return Cost(flops, moved, _time_of_ours(record, call, known, chip))
    rate = TENSOR_RATES[2] if record.computed_by == LIBRARY else CORE_RATE
    return Cost(flops, moved, max(LEAST, _roofline(flops or 0, moved, rate, chip)))


def sizes_inside(
    record: FunctionRecord, call: CallRecord, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Return the values of a function's symbols in one call, next to the caller's."""
    known = dict(sizes)
    for tensor, shape in zip(record.tensors, call.shapes, strict=False):
        for name, text in zip(tensor.shape, shape, strict=False):
            value = value_of(text, sizes)
            if name.isidentifier() and value is not None:
                known[name] = value
    return known


def kernel_for(record: FunctionRecord, known: Mapping[str, int]) -> KernelRecord | None:
    """Return the kernel that a function launches for some sizes."""
    rows = value_of(record.product.rows, known) if record.product is not None else None
    bounds = [x for x in record.kernels if x.rows is not None]
    if rows is None or len(bounds) < 2:
        return record.kernels[0] if record.kernels else None
    fits = [x for x in record.kernels if _holds(x.launched_for, rows)]
    return fits[0] if fits else max(bounds, key=lambda x: x.rows or 0)


def _holds(condition: str, rows: int) -> bool:
    """Tell whether so many rows are in the ranges of a launch, see `analysis.launches.as_text`."""
    return any(low <= rows <= high for low, high in ranges_of(condition))


def ranges_of(condition: str) -> list[tuple[float, float]]:
    """Read ranges: "9 <= rows <= 16 or rows >= 513" is from 9 to 16, and from 513 on."""
    found = []
    for part in condition.split(" or ") if condition else []:
        words = part.split()
        low, high = 0.0, float("inf")
        if len(words) == 5:
            low, high = float(words[0]), float(words[4])
        elif len(words) == 3 and words[2].lstrip("-").isdigit():
            low = float(words[2]) if words[1] in (">=", "==") else low
            high = float(words[2]) if words[1] in ("<=", "==") else high
        else:
            continue
        found.append((low, high))
    return found


def _time_of_ours(
    record: FunctionRecord, call: CallRecord, known: dict[str, int], chip: Chip
) -> float:
    kernel, product = kernel_for(record, known), record.product
    width = element_bytes(product.dtype) if product is not None else 0
    multiplies = record.rule in ON_TENSOR_CORES  # batches and attention have no ProductRecord
    rate = TENSOR_RATES.get(width, TENSOR_RATES[2] if multiplies else CORE_RATE)
    if product is not None and value_of(product.rows, known) == 0:
        return 0.0
    bound = _bound(record, call, known, rate, chip)
    if kernel is None or not kernel.microseconds:
        return max(LEAST, bound)
    if product is None:
        is_static = not names_in(x for tensor in record.tensors for x in tensor.shape)
        return max(LEAST, kernel.microseconds if multiplies and is_static else bound)
    chosen_for = dict(known)
    if kernel.rows is not None and product.rows.isidentifier():
        chosen_for[product.rows] = kernel.rows
    time, reference = kernel.microseconds, _bound(record, call, chosen_for, rate, Chip())
    return max(time + (bound - reference), min(time, bound))


def _bound(
    record: FunctionRecord, call: CallRecord, known: Mapping[str, int], rate: float, chip: Chip
) -> float:
    """Return the roofline's time of a function of ours."""
    moved = float(value_of(call.num_bytes or record.num_bytes, known) or 0)
    dear = {x.tensor: max(2, x.fetched / x.num_bytes) for x in record.elements}
    for tensor in record.tensors:
        shape = [value_of(x, known) or 0 for x in tensor.shape]
        moved += (dear.get(tensor.name, 1) - 1) * prod(shape) * element_bytes(tensor.dtype)
    return _roofline(value_of(call.flops or record.flops, known) or 0, moved, rate, chip)


def _roofline(flops: float, moved: float, rate: float, chip: Chip) -> float:
    cores = chip.num_sms / DEFAULT_NUM_SMS
    cores *= 1.0 if rate == CORE_RATE else chip.tensor_rate
    return max(flops / (rate * cores), moved / (COPY_RATE * chip.memory_rate))
