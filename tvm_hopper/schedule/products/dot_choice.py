"""When few rows are computed by dot products, and how they are dealt out.

    time = start + norm(bytes / memory, rows of weights and of A / instructions)

The constants are fitted to times of an H200 (docs/choice.md).  Up to `MOST_CHOSEN` rows the time is
set beside that of the best tile; above, tensor cores win: each value of 16 bits that a thread
multiplies is converted first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import dtype_bytes

from .config import MatmulConfig
from .dot_shape import MOST_ROWS, VECTOR_BYTES, DotShape
from .estimate import ProductShape
from .recognize import Matmul

# Fields of a configuration that dot products go with; whatever else is given asks for a tile.
BESIDE = ("dots", "accumulate", "batch_invariant")
MOST_CHOSEN = 2  # rows up to which dot products may be chosen


@dataclass(frozen=True)
class DotRates:
    """What the estimate is made of.

    Attributes
    ----------
    start_us
        Launch, and the first and the last vectors' way.
    memory_bytes
        Bytes a microsecond of the device's memory.
    """

    start_us: float = 2.6
    memory_bytes: float = 4.52e6


RATES = DotRates()


def may_be_dots(given: MatmulConfig) -> bool:
    """Tell whether a configuration leaves open, or asks, that dot products are computed."""
    if given.dots is not None:
        return given.dots is not False
    decided = (x for x in fields(given) if x.name not in BESIDE)
    return not given.batch_invariant and all(getattr(given, x.name) is None for x in decided)


def estimate_dots(product: ProductShape, chip: Chip) -> float:
    """Estimate how long dot products take, in microseconds."""
    size = dtype_bytes(product.dtype)
    moved = (product.n * product.k + product.m * product.k) * size
    moved += product.m * product.n * product.out_bytes
    return RATES.start_us + moved / (RATES.memory_bytes * chip.memory_rate)


def choose_shape(rows: int, k: int, dtype: str) -> DotShape:
    """Choose how sums are dealt out: as few vectors as can be reach beyond the end of a sum."""
    vector = VECTOR_BYTES // dtype_bytes(dtype)
    count = -(-k // vector)
    best = None
    for threads in (128, 256, 64, 32, 224, 192, 160, 96):
        for vectors in (4, 8, 7, 6, 5, 3, 2, 1):
            steps = -(-count // (threads * vectors))
            beyond = steps * threads * vectors / count - 1
            few = max(0, 4 - vectors) / 4
            key = beyond + 0.1 * few
            if best is None or key < best[0] - 1e-9:
                best = key, DotShape(threads, max(1, 128 // threads), 1, vectors)
    assert best is not None
    return best[1]


def choose_dots(product: ProductShape, given: MatmulConfig, tile_us: float, chip: Chip) -> bool:
    """Tell whether dot products are estimated to take less than the best tile."""
    few = not product.is_symbolic and product.m <= MOST_CHOSEN
    is_served = product.majors == ("k", "k")
    return few and is_served and may_be_dots(given) and estimate_dots(product, chip) < tile_us


def find_unserved(problem: Matmul, rows: Any, views: Any) -> str:
    """Say why a product cannot be computed as dot products; empty if it can."""
    vector = VECTOR_BYTES // dtype_bytes(problem.rhs.dtype)
    for operand in (problem.lhs, problem.rhs):
        name = operand.name
        if operand.major != "k":
            return f"{name}, whose rows do not run along the sum; need A[m, k] and B[n, k]"
        if len(operand.buffer.ty.strides) or any(operand.buffer.same_as(x) for x in views):
            return f"a part or a strided view as {name}; need a whole compact tensor"
        if not ir.is_const(ir.simplify(operand.buffer.shape[operand.kept[1]] % vector), 0):
            return f"rows of {name} that are no multiple of {VECTOR_BYTES} bytes"
    if not isinstance(rows, int) or rows > MOST_ROWS:
        return f"{rows} rows; need at most {MOST_ROWS}, or a class of as many"
    if not isinstance(problem.n.extent, int) or not isinstance(problem.k.extent, int):
        return "symbolic columns or a symbolic sum; need static ones"
    if not problem.starts_from_zero:
        return "a sum that does not start from zero"
    return ""


def refuse(problem: Matmul, why: str) -> Exception:
    """Build the refusal of dot products that were asked for."""
    found, _, need = why.partition("; need ")
    return cannot_schedule(
        f"block {problem.name}, dots",
        found,
        need or "what threads can load by whole vectors",
        "leave dots out: tensor cores take it",
    )
