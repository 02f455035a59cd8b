"""Cluster instructions: barrier, rank, and reads of distributed shared memory."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

_SUFFIXES = {"float32": "f32", "int32": "s32", "uint32": "u32", "int64": "s64"}


def arrive() -> Any:
    """Arrive at the cluster's barrier; this thread's earlier accesses are known after it.

    `barrier.cluster.arrive.release.aligned`, PTX ISA 9.1, 9.7.13.5. Whole warps arrive; nobody
    waits for threads that have exited.
    """
    return T.ptx.barrier.cluster.arrive.release.aligned()


def arrive_relaxed() -> Any:
    """Arrive at the cluster's barrier, with nothing to be known after it but the arrival."""
    return T.ptx.barrier.cluster.arrive.relaxed.aligned()


def wait() -> Any:
    """Wait until all threads of the cluster have arrived (`barrier.cluster.wait`, 9.7.13.5)."""
    return T.ptx.barrier.cluster.wait.acquire.aligned()


def peer_address(out: Any, address: Any, rank: Any) -> Any:
    """Store into `out`, a uint32, where another block of the cluster has what is at an address.

    `mapa.shared::cluster.u32`, PTX ISA 9.1, 9.7.9.24; `rank` is a uint32.
    """
    return T.ptx.mapa.shared__cluster.u32(out, address, rank)


def load(out: Any, address: Any, dtype: str) -> Any:
    """Load a value from an address of `peer_address` into `out` (`ld.shared::cluster`)."""
    return T.ptx[f"ld.shared::cluster.{_SUFFIXES[dtype]}"](out, address)


def store_async(address: Any, value: Any, barrier: Any, dtype: str) -> Any:
    """Store a value to another thread block, and complete its bytes on an mbarrier there.

    `st.async`, PTX ISA 9.1, 9.7.9.12; both are addresses of `peer_address`, in one thread block.
    """
    name = "st_async.shared::cluster.mbarrier::complete_tx::bytes"
    return T.ptx[f"{name}.{_SUFFIXES[dtype]}"](address, value, barrier)


def store(address: Any, value: Any, dtype: str) -> Any:
    """Store a value to an address of `peer_address` (`st.shared::cluster`, 9.7.9.11)."""
    return T.ptx[f"st.shared::cluster.{_SUFFIXES[dtype]}"](address, value)
