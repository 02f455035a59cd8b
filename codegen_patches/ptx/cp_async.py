"""Copies of 4, 8 or 16 bytes by each thread, and their groups (PTX ISA 9.1, 9.7.9.25.3)."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T


def copy(tile: Any, tensor: Any, num_bytes: int, source_bytes: Any = None) -> Any:
    """Copy bytes from global to shared memory, as part of this thread's next group.

    Parameters
    ----------
    tile, tensor
        Pointers into this thread block's shared memory, and into global memory; both are multiples
        of `num_bytes`.
    num_bytes
        4, 8 or 16; 16 pass by L1.
    source_bytes
        How many of them are read, the others are filled with zeros; None: all.
    """
    through = "cg" if num_bytes == 16 else "ca"
    name = f"cp.async.{through}.shared.global"
    if source_bytes is None:
        return T.ptx[name](tile, tensor, num_bytes)
    return T.ptx[name](tile, tensor, num_bytes, T.uint32(source_bytes))


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
