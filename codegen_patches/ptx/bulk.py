"""Bulk copies (`cp.async.bulk`) and bulk commit groups (PTX ISA 9.1, 9.7.9.25).

Both addresses, and the number of bytes, are multiples of 16.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from tvm_hopper.facts.programming_model import MBARRIER_MAX_TX_BYTES

from .cache import hinted

_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
_STORE = "cp.async.bulk.global.shared::cta.bulk_group"
_REDUCE = "cp.reduce.async.bulk.global.shared::cta.bulk_group.{suffix}"


def unsigned(num_bytes: Any) -> Any:
    """Return a number of bytes, an int or an int32, as uint32.

    Where it may be negative nothing is executed. But TVM's simplifier looks at such values too, and
    does not convert a negative constant; of the bits of one it makes a legal number.
    """
    if isinstance(num_bytes, int):
        return T.uint32(num_bytes)
    return tirx.Cast("uint32", tirx.bitwise_and(num_bytes, MBARRIER_MAX_TX_BYTES))


def load(tile: Any, tensor: Any, num_bytes: Any, barrier: Any, policy: Any = None) -> Any:
    """Copy bytes from global memory to shared memory; they complete on an mbarrier.

    - `tile`, `tensor`: pointers into this thread block's shared memory, and into global memory.
    - `num_bytes`: int32, or an expression of it.
    - `barrier`: pointer to the mbarrier.
    - `policy`: what L2 is to do with the bytes (`cache.create_policy`); None says nothing.
    """
    name, more = hinted(_LOAD, policy)
    return T.ptx[name](tile, tensor, unsigned(num_bytes), barrier, *more)


def store(tensor: Any, tile: Any, num_bytes: Any) -> Any:
    """Copy bytes from shared memory to global memory, as part of this thread's next bulk group."""
    return T.ptx[_STORE](tensor, tile, unsigned(num_bytes))


def prefetch(tensor: Any, num_bytes: Any) -> Any:
    """Bring bytes of global memory into L2; a hint, which nothing has to wait for.

    `cp.async.bulk.prefetch.L2` (PTX ISA 9.1, 9.7.9.25.5.3): address and size are multiples of 16.
    """
    return T.ptx["cp.async.bulk.prefetch.L2.global"](tensor, unsigned(num_bytes))


def reduce(tensor: Any, tile: Any, num_bytes: Any, suffix: str) -> Any:
    """Combine elements of shared memory with those of global memory, in this thread's next group.

    Each by a relaxed atomic operation at gpu scope; `suffix` names operation and type, e.g.
    "add.f32" (PTX ISA 9.1, 9.7.9.25.5.2).
    """
    return T.ptx[_REDUCE.format(suffix=suffix)](tensor, tile, unsigned(num_bytes))


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
