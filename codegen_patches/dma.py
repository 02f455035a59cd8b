"""Hexagon's DMA: copies through a queue and their groups (TVM's builtins of the same names).

    dma_start_group(queue)
    dma_copy(queue, tile, tensor, bytes, bypass)
    dma_end_group(queue)
    dma_wait(queue, n)               at most the n newest groups are not complete

TVM's runtime keeps the copies of all queues in one order; a queue counts groups. One queue is
enough where one thread issues and waits.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

QUEUE = 0
BYPASS_CACHE = 0  # as LowerAsyncDMA has it without the option, which this TVM does not take


def copy(tile: Any, tensor: Any, num_bytes: int) -> Any:
    """Copy bytes from global memory to VTCM, as part of the group that is open.

    - `tile`, `tensor`: pointers into VTCM and into global memory.
    - `num_bytes`: contiguous at both ends, more than 0.
    """
    return _call("dma_copy", QUEUE, tile, tensor, num_bytes, BYPASS_CACHE)


def start_group() -> Any:
    """Open a group. It must contain a copy before it is closed, and no wait."""
    return _call("dma_start_group", QUEUE)


def end_group() -> Any:
    """Close the group that is open."""
    return _call("dma_end_group", QUEUE)


def wait_group(num_pending: int) -> Any:
    """Wait until at most the newest `num_pending` groups are not complete."""
    return _call("dma_wait", QUEUE, num_pending)


def _call(name: str, *args: Any) -> Any:
    return tirx.call_intrin("int32", f"tirx.{name}", *args)
