"""Fences between proxies, and barriers of the threads of a block."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

PROXY_SCOPES = ("shared::cta", "shared::cluster", "global")


def proxy_async(scope: str = "shared::cta") -> Any:
    """Order this thread's accesses through the generic proxy before later ones of the async proxy.

    `fence.proxy.async`, PTX ISA 9.1, 9.7.13.4; `scope` is one of `PROXY_SCOPES`.
    """
    return T.ptx[f"fence.proxy.async.{scope}"]()


def sync_threads() -> Any:
    """Wait for every thread of the block: named barrier 0 (`bar.sync`, 9.7.13.1)."""
    return T.tvm_storage_sync("shared")


def sync_named(barrier: int, num_threads: int) -> Any:
    """Wait at a named barrier, 1 to 15, for `num_threads` threads (`bar.sync`, 9.7.13.1).

    All threads of a warp come together; the number is a multiple of 32.
    """
    return T.ptx.bar.sync(T.uint32(barrier), T.uint32(num_threads))


def arrive_named(barrier: int, num_threads: int) -> Any:
    """Arrive at a named barrier without waiting (`bar.arrive`, 9.7.13.1)."""
    return T.ptx.bar.arrive(T.uint32(barrier), T.uint32(num_threads))


def sync_warp() -> Any:
    """Wait for the warp's 32 threads (`bar.warp.sync`, 9.7.13.2)."""
    return T.cuda.warp_sync()
