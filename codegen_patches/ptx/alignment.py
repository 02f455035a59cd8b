"""How aligned the addresses have to be that copy instructions are given."""

from __future__ import annotations

import re
from typing import Any

from tvm_hopper.facts.programming_model import BULK_ALIGNMENT

_THREAD = re.compile(r"tirx\.ptx\.cp_async_c[ag]")
_BULK = re.compile(r"tirx\.ptx\.cp_async_bulk_(g2s|s2g)")


def copy_alignment(call: Any) -> int:
    """Return the bytes of whose multiples the addresses of a copy are; 1 for any other call.

    `cp.async`: as many as it copies (PTX ISA 9.1, 9.7.9.25.3.1). In bulk: 16 (9.7.9.25.4.1).
    Copies through a tensor map have no address of their own.
    """
    name = str(getattr(call.op, "name", ""))
    if _BULK.match(name):
        return BULK_ALIGNMENT
    return int(call.args[2]) if _THREAD.match(name) else 1
