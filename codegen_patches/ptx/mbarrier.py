"""mbarrier: completion by arrivals and bytes in phases (PTX ISA 9.1, 9.7.13.15).

A `barrier` is a pointer to the 8-byte object in this thread block's shared memory.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T


def init(barrier: Any, count: int) -> Any:
    """Initialise a barrier in phase 0, which `count` arrivals complete (`mbarrier.init`)."""
    return T.ptx.mbarrier.init.shared.b64(barrier, T.uint32(count))


def fence_init() -> Any:
    """Make earlier `init`s of this thread known to the async proxy and to the cluster.

    `fence.mbarrier_init`, 9.7.13.4. Threads of the same block need a `fences.sync_threads` too.
    """
    return T.ptx.fence.mbarrier_init.release.cluster()


def is_fence_init(call: Any) -> bool:
    """Tell whether a call is `fence.mbarrier_init`."""
    return bool(call.op.name == "tirx.ptx.fence_mbarrier_init")


def arrive(barrier: Any) -> Any:
    """Arrive once, releasing what this thread did before (`mbarrier.arrive`)."""
    return T.ptx.mbarrier.arrive.shared.b64(barrier)


def arrive_at_peer(address: Any, of_cluster: bool) -> Any:
    """Arrive once at a barrier of another block of the cluster, by its `cluster.peer_address`.

    `of_cluster`: what this thread read and wrote before is known to that block, too. Operations
    that are complete and were waited for need no such scope (9.7.13.15.13).
    """
    if of_cluster:
        return T.ptx["mbarrier.arrive.release.cluster.shared::cluster.b64"](address)
    return T.ptx.mbarrier.arrive.shared__cluster.b64(address)


def arrive_expect_tx(barrier: Any, num_bytes: Any) -> Any:
    """Arrive once and expect `num_bytes` more bytes of copies (`mbarrier.arrive.expect_tx`)."""
    return T.ptx.mbarrier.arrive.expect_tx.shared.b64(barrier, T.uint32(num_bytes))


def wait(barrier: Any, parity: Any, of_cluster: bool = False) -> Any:
    """Wait until the phase of that parity (0 or 1, int32) is over, and acquire.

    A loop around `mbarrier.try_wait.parity`, in a helper function of TVM's. `of_cluster`: what
    other blocks released at that scope (`arrive_at_peer`) is known, too.
    """
    if of_cluster:
        return T.cuda.mbarrier_wait_acquire_cluster(barrier, parity)
    return T.cuda.mbarrier_wait(barrier, parity)
