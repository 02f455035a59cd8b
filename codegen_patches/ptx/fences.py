"""Proxy fences, block barriers (`bar.sync`) and `elect.sync`."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from tvm_hopper import ir
from tvm_hopper.facts.programming_model import THREADS_PER_WARP

PROXY_SCOPES = ("shared::cta", "shared::cluster", "global")


def proxy_async(scope: str = "shared::cta") -> Any:
    """Order this thread's accesses through the generic proxy before later ones of the async proxy.

    `fence.proxy.async`, PTX ISA 9.1, 9.7.13.4; `scope` is one of `PROXY_SCOPES`.
    """
    return T.ptx[f"fence.proxy.async.{scope}"]()


def sync_threads(num_threads: Any = None) -> Any:
    """Wait for every thread of the block: named barrier 0 (`bar.sync`, 9.7.13.1).

    In a block of one warp it is the warp's barrier, which waits for no other warp.
    """
    count = None if num_threads is None else ir.static_int(num_threads)
    if count is not None and count <= THREADS_PER_WARP:
        return sync_warp()
    return T.tvm_storage_sync("shared")


def sync_scope(scope: str) -> Any:
    """Wait for every thread of the block, as TVM's ThreadSync does: for one scope of memory."""
    return T.tvm_storage_sync(scope)


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


def elect() -> Any:
    """Choose one lane of a warp whose 32 lanes come together: true in that one (`elect.sync`).

    It is the same lane each time (PTX ISA 9.1, 9.7.13.15), which one is not said.
    """
    return T.cuda.elect_sync().equal(T.uint32(1))


def launch_dependents() -> Any:
    """Let the launch after this one begin, once every block says so or ends (9.7.13.13)."""
    return T.ptx.griddepcontrol.launch_dependents()


def wait_for_launches() -> Any:
    """Wait until the launches before this one have ended, and see what they wrote (9.7.13.13)."""
    return T.ptx.griddepcontrol.wait()


def wait_for(seen: Any, address: Any, condition: Any) -> Any:
    """Read a word into a register until a condition on it holds; what was released is seen then.

    `ld.acquire.gpu.global.u32` in a loop, 9.7.9.8.
    """
    return T.cuda.wait_until(seen, address, condition, ptx_type="u32")


def release(address: Any, value: Any) -> Any:
    """Store a word after all that this thread has stored: `st.release.gpu.global`, 9.7.9.11."""
    return T.ptx["st.release.gpu.global.u32"](address, value)
