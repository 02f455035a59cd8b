"""Flags in global memory by which thread blocks synchronise: release, acquire (PTX 9.1, 8.7)."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T


def wait_for(seen: Any, address: Any, condition: Any) -> Any:
    """Read a word into a register until a condition on it holds; what was released is seen then.

    `ld.acquire.gpu.global.u32` in a loop, 9.7.9.8.
    """
    return T.cuda.wait_until(seen, address, condition, ptx_type="u32")


def release(address: Any, value: Any) -> Any:
    """Store a word after all that this thread has stored: `st.release.gpu.global`, 9.7.9.11."""
    return T.ptx["st.release.gpu.global.u32"](address, value)
