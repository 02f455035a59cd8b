"""Estimate the time of a model's functions for given symbolic sizes.

Products: the estimate that chose their kernels, for the kernel of the class that runs.  Whatever
else is ours: its bytes, each once, at the rate of a copy.  What is accessed element by element
counts for as many bytes as memory hands out for each element, at least twice: rope took that long
(docs/memory_bound.md).  Of other kernels nothing is known.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from tvm_hopper.facts.devices import Chip
from tvm_hopper.facts.dtypes import HALF_DTYPES, dtype_bytes
from tvm_hopper.schedule.products.class_choice import estimate_all
from tvm_hopper.schedule.products.model import as_product, choose_config
from tvm_hopper.schedule.products.ranges import choose_ranges

from .records import OURS, CallRecord, FunctionRecord

COPY_RATE = (
    4.28e6  # bytes a microsecond that a copy on an H200 reads and writes (docs/memory_bound.md)
)
LEAST = 1.5  # microseconds of the smallest kernel in a graph, an RMSNorm of one row

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def value_of(text: str, sizes: Mapping[str, int]) -> int | None:
    """Evaluate an extent; None where it names a symbol without a value, or is no arithmetic."""

    def walk(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return sizes[node.id]
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        raise KeyError

    try:
        return walk(ast.parse(text, mode="eval").body)
    except (KeyError, SyntaxError, ZeroDivisionError):
        return None


def symbols_of(call: CallRecord) -> set[str]:
    """Name the symbols of a call's shapes."""
    texts = [text for shape in call.shapes for text in shape]
    names: set[str] = set()
    for text in texts:
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError:
            continue
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names


def call_time(
    record: FunctionRecord, call: CallRecord, sizes: Mapping[str, int], chip: Chip
) -> float | None:
    """Estimate one call of a function.

    Parameters
    ----------
    record : FunctionRecord
        The function.
    call : CallRecord
        One of its calls.
    sizes : mapping of str to int
        Values of the caller's symbols.
    chip : Chip
        That it runs on.

    Returns
    -------
    microseconds : float or None
        None where no kernel of ours computes it, or a symbol has no value.
    """
    if record.computed_by != OURS:
        return None
    shapes = [[value_of(x, sizes) for x in shape] for shape in call.shapes]
    if len(shapes) != len(record.tensors) or any(x is None for shape in shapes for x in shape):
        return None
    if record.product is None or record.product.dtype not in HALF_DTYPES:
        dear = {x.tensor: max(2, x.fetched / x.num_bytes) for x in record.elements}
        moved = sum(
            prod(x or 0 for x in shape) * dtype_bytes(tensor.dtype) * dear.get(tensor.name, 1)
            for shape, tensor in zip(shapes, record.tensors, strict=True)
        )
        return max(LEAST, moved / (COPY_RATE * chip.memory_rate))
    known: dict[str, Any] = {}
    for shape, tensor in zip(shapes, record.tensors, strict=True):
        known.update((x, value) for x, value in zip(tensor.shape, shape, strict=True))
    rows = value_of(record.product.rows, {k: v for k, v in known.items() if v is not None})
    return None if rows is None else _product_time(record, rows, chip)


def _product_time(record: FunctionRecord, rows: int, chip: Chip) -> float:
    """Estimate a product with the kernel that runs for so many rows."""
    if rows == 0:
        return 0.0
    product = record.product
    assert product is not None
    exact = [x.microseconds for x in record.kernels if x.rows == rows and x.microseconds]
    if exact and chip == Chip():
        return exact[0]
    n, k, dtype, out = product.columns, product.depth, product.dtype, product.out_dtype
    kernels = {x.rows: x.rows for x in record.kernels if x.rows is not None} or {rows: rows}
    if any(" or " in x.launched_for for x in record.kernels):  # chosen by the model
        ranges = choose_ranges(n, k, dtype, majors=product.majors, out_dtype=out)
        kernels = ranges if set(ranges.values()) == set(kernels) else kernels
    bound = kernels[next((x for x in kernels if x >= rows), max(kernels))]
    config = choose_config(bound, n, k, dtype, majors=product.majors, out_dtype=out)
    wanted = as_product(rows, n, k, dtype, product.majors, out)
    return float(estimate_all([wanted], [config], chip)[0, 0])
