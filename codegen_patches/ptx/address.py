"""Addresses in shared memory as integers."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T


def generic_to_shared(pointer: Any) -> Any:
    """Return a pointer's address in the block's shared memory, in bytes, as uint32.

    `cvta.to.shared`, PTX ISA 9.1, 9.7.9.
    """
    return T.cuda.cvta_generic_to_shared(pointer)
