"""Which products of few rows become dot products: what was asked, served, and is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_hopper.errors import cannot_schedule
from tvm_hopper.facts.dtypes import dtype_bytes
from tvm_hopper.requests import keys
from tvm_hopper.requests.targets import chip_of_target

from .classes import ClassKernel, product_of
from .dot_choice import choose_dots, choose_shape, estimate_dots, may_be_dots
from .dot_shape import MOST_ROWS, VECTOR_BYTES, DotShape
from .model import rank_both
from .recognize import Matmul


@dataclass(frozen=True)
class DotKernel:
    """How a product is computed as dot products.

    Attributes
    ----------
    rows : int
        Of the output, that a thread block computes together.
    shape : DotShape
        How the work is dealt out.
    chosen : str
        What `explain` says of it.
    chosen_for : tuple of int
        Of a size class what `keys.CHOSEN_FOR` says, else nothing.
    is_narrow : bool
        Whether the program sums in 16 bits.
    """

    rows: int
    shape: DotShape
    chosen: str
    chosen_for: tuple[int, ...]
    is_narrow: bool


def find_dots(
    problem: Matmul, kernel: ClassKernel, views: Sequence[Any], outputs: tuple[str, ...]
) -> DotKernel | None:
    """Return how a product is computed as dot products, None where tensor cores take it.

    Parameters
    ----------
    problem : Matmul
        The product.
    kernel : ClassKernel
        What was asked for.
    views : sequence of Buffer
        Operands that are parts of tensors.
    outputs : tuple of str
        Types of what the kernel leaves in memory.

    Raises
    ------
    ScheduleError
        Dot products were asked for, and cannot serve the product.
    """
    config = kernel.config
    if not may_be_dots(config):
        return None
    rows = problem.m.extent if kernel.rows is None else kernel.rows
    if why := _unserved(problem, rows, views):
        if config.dots:
            found, _, need = why.partition("; ")
            fix = "leave dots out: tensor cores take it"
            raise cannot_schedule(f"block {problem.name}, dots", found, need, fix)
        return None
    wanted, chip = product_of(problem, kernel, outputs), chip_of_target()
    time = estimate_dots(wanted, chip)
    shape = choose_shape(rows, wanted.n, wanted.k, wanted.dtype, chip)
    chosen = f"{shape}: {time:.1f} us by estimate"
    if isinstance(config.dots, tuple):
        shape = DotShape(*config.dots)
        chosen = str(shape)
    elif config.dots is None:
        best, *_ = rank_both(wanted, config, chip, 1)
        if not choose_dots(wanted, config, best.microseconds, chip):
            return None
        chosen += f"; then {best}"
    tenths = min(max(1, round(10 * time)), keys.INT32_MAX)
    chosen_for = () if kernel.rows is None else (kernel.rows, tenths)
    return DotKernel(rows, shape, chosen, chosen_for, problem.acc_dtype != "float32")


def _unserved(problem: Matmul, rows: Any, views: Sequence[Any]) -> str:
    """Say why a product cannot be computed as dot products, and what can; empty if it can."""
    vector = VECTOR_BYTES // dtype_bytes(problem.rhs.dtype)
    for operand in (problem.lhs, problem.rhs):
        if operand.major != "k":
            return f"{operand.name} with rows that do not run along k; A[m, k] and B[n, k]"
        if len(operand.buffer.ty.strides) or any(operand.buffer.same_as(x) for x in views):
            return "an operand that is a part of a tensor, or has strides; whole compact tensors"
    if not isinstance(rows, int) or rows > MOST_ROWS:
        return f"{rows} rows; at most {MOST_ROWS}, or a size class of as many"
    for name, axis in (("N", problem.n), ("K", problem.k)):
        if not isinstance(axis.extent, int):
            return f"{name} = {axis.extent}, symbolic; static N and K"
    if problem.k.extent % vector:
        return f"K = {problem.k.extent}; a multiple of {vector}"
    if not problem.starts_from_zero:
        return "a sum that does not start from zero; one that does, with the rest behind it"
    return ""
