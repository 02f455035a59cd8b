"""The bodies that passes work on: kernels, or whole functions on one-thread processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .keys import ASYNC_COPY, MEMORY_BOUND
from .targets import processor_of


def map_bodies(func: tirx.PrimFunc, change: Callable[[Any], Any]) -> tirx.PrimFunc:
    """Offer to `change` what the threads of a function's processor run.

    Parameters
    ----------
    func : PrimFunc
        The function.
    change : callable
        Returns the statement that it is offered, or a replacement: each kernel, a loop that is
        bound to a thread axis, or all of the body where one thread runs it.

    Returns
    -------
    func : PrimFunc
    """
    if processor_of(func).has_threads:
        return ir.map_kernels(func, change)
    new = change(func.body)
    return func if new.same_as(func.body) else func.with_body(new)


def is_memory_bound(kernel: Any) -> bool:
    """Tell a kernel of registers and plain vectors, as `hs.pointwise` makes them."""
    axis = ir.thread_axes(kernel).get("blockIdx.x")
    return axis is not None and MEMORY_BOUND in axis.annotations


def is_requested(kernel: Any) -> bool:
    """Tell a kernel whose threads request copies by hardware, or that is bound by memory."""
    return bool(ir.find_blocks(kernel, ASYNC_COPY)) or is_memory_bound(kernel)
