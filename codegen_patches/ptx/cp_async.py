"""`cp.async`: copies of 4, 8 or 16 bytes per thread and their groups (PTX ISA 9.1, 9.7.9.25.3)."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T


def copy(tile: Any, tensor: Any, num_bytes: int, source_bytes: Any = None) -> Any:
    """Copy bytes from global to shared memory, as part of this thread's next group.

    - `tile`, `tensor`: pointers into this thread block's shared memory, and into global memory;
      both are multiples of `num_bytes`.
    - `num_bytes`: 4, 8 or 16; 16 pass by L1.
    - `source_bytes`: how many of them are read, the others are filled with zeros; None: all.
    """
    through = "cg" if num_bytes == 16 else "ca"
    name = f"cp.async.{through}.shared.global"
    if source_bytes is None:
        return T.ptx[name](tile, tensor, num_bytes)
    return T.ptx[name](tile, tensor, num_bytes, _unsigned(source_bytes))


def _unsigned(num_bytes: Any) -> Any:
    """Return a number of bytes from 0 to 16 as uint32.

    Behind a condition TVM may forget what keeps it from being negative, and its analysis, which
    looks at the value by itself, fails on a negative constant: of its bits it makes a legal one.
    """
    if isinstance(num_bytes, tirx.Select):
        both = num_bytes.true_value, num_bytes.false_value
        return tirx.Select(num_bytes.condition, *map(_unsigned, both))
    if isinstance(num_bytes, (int, tirx.IntImm)):
        return T.uint32(int(num_bytes))
    return tirx.Cast("uint32", tirx.bitwise_and(num_bytes, 31))


def arrive(barrier: Any) -> Any:
    """Let this thread arrive at an mbarrier once its earlier copies are complete.

    `cp.async.mbarrier.arrive.noinc`, 9.7.13.15: the barrier's count provides for the arrival.
    `barrier` is a pointer into this thread block's shared memory.
    """
    return T.ptx["cp.async.mbarrier.arrive.noinc.shared.b64"](barrier)


def commit_group() -> Any:
    """Close this thread's group (`cp.async.commit_group`)."""
    return T.ptx.cp.async_.commit_group()


def wait_group(num_pending: int) -> Any:
    """Wait until at most the newest `num_pending` groups of this thread are not complete."""
    return T.ptx.cp.async_.wait_group(num_pending)
