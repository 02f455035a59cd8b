"""Contiguous copies in bulk, and the groups of copies out of shared memory (PTX ISA 9.1, 9.7.9.25).

Both addresses, and the number of bytes, are multiples of 16.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
_STORE = "cp.async.bulk.global.shared::cta.bulk_group"


def load(tile: Any, tensor: Any, num_bytes: Any, barrier: Any) -> Any:
    """Copy bytes from global memory to shared memory; they complete on an mbarrier.

    Parameters
    ----------
    tile, tensor
        Pointers into this thread block's shared memory, and into global memory.
    num_bytes
        int32, or an expression of it.
    barrier
        Pointer to the mbarrier.
    """
    return T.ptx[_LOAD](tile, tensor, T.uint32(num_bytes), barrier)


def store(tensor: Any, tile: Any, num_bytes: Any) -> Any:
    """Copy bytes from shared memory to global memory, as part of this thread's next bulk group."""
    return T.ptx[_STORE](tensor, tile, T.uint32(num_bytes))


def commit_group() -> Any:
    """Close this thread's group of bulk stores (`cp.async.bulk.commit_group`)."""
    return T.ptx.cp.async_.bulk.commit_group()


def wait_group(num_pending: int, read_only: bool) -> Any:
    """Wait until at most the newest `num_pending` groups of this thread are not complete.

    With `read_only` their sources have been read, and may be overwritten; what they write may
    still be under way (`cp.async.bulk.wait_group`).
    """
    if read_only:
        return T.ptx["cp.async.bulk.wait_group.read"](num_pending)
    return T.ptx["cp.async.bulk.wait_group"](num_pending)
