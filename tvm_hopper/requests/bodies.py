"""The bodies that passes work on: kernels, or whole functions on one-thread processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_hopper import ir

from .keys import (
    ASYNC_COPY,
    BLOCKS_PER_SM,
    CHOSEN,
    EARLY_LAUNCH,
    EARLY_LOADS,
    KEPT_END,
    LAUNCHED_TOGETHER,
    LOAD_HINT,
    MEMORY_BOUND,
    ROW_CLUSTER,
)
from .targets import processor_of

# what kernels of registers and plain vectors ask for
_OF_VECTORS = {
    *(MEMORY_BOUND, CHOSEN, BLOCKS_PER_SM, KEPT_END, LAUNCHED_TOGETHER),
    *(EARLY_LAUNCH, EARLY_LOADS, LOAD_HINT),
}


def map_bodies(func: tirx.PrimFunc, change: Callable[[Any], Any]) -> tirx.PrimFunc:
    """Offer to `change` what the threads of a function's processor run.

    - `change` (callable): returns the statement that it is offered, or a replacement: each kernel,
      a loop that is bound to a thread axis, or all of the body where one thread runs it.
    """
    if processor_of(func).has_threads:
        return ir.map_kernels(func, change)
    new = change(func.body)
    return func if new.same_as(func.body) else func.with_body(new)


def is_memory_bound(kernel: Any) -> bool:
    """Tell a kernel of registers and plain vectors, as `hs.pointwise` makes them."""
    axis = ir.thread_axes(kernel).get("blockIdx.x")
    return axis is not None and MEMORY_BOUND in axis.annotations


def has_rows(func: tirx.PrimFunc) -> bool:
    """Tell a function with a kernel that is bound by memory, or whose rows clusters share."""
    axes = [ir.thread_axes(kernel).get("blockIdx.x") for kernel in ir.kernels(func)]
    notes = [x.annotations for x in axes if x is not None]
    return any(MEMORY_BOUND in x or ROW_CLUSTER in x for x in notes)


def asks_for_copies(func: tirx.PrimFunc) -> bool:
    """Tell a function with a kernel that is more than registers and plain vectors.

    Of a kernel bound by memory that has nothing but launch requests and hints left, the passes for
    asynchronous copies and products have nothing to do.
    """
    kernels = ir.kernels(func)
    return not kernels or any(not is_memory_bound(x) or _asks_for_more(x) for x in kernels)


def _asks_for_more(kernel: Any) -> bool:
    notes = [x.annotations for kind in (ir.For, ir.SBlock) for x in ir.find_all(kernel, kind)]
    return any(str(key) not in _OF_VECTORS for x in notes for key in x)


def is_requested(kernel: Any) -> bool:
    """Tell a kernel whose threads request copies by hardware, or that is bound by memory."""
    return bool(ir.find_blocks(kernel, ASYNC_COPY)) or is_memory_bound(kernel)
