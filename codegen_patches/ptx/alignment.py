"""Alignment that instructions need of their addresses."""

from __future__ import annotations

import re
from typing import Any

from tvm.ir import StringImm

from tvm_hopper.facts.programming_model import BULK_ALIGNMENT

_THREAD = re.compile(r"tirx\.ptx\.cp_async_c[ag]")
_BULK = re.compile(r"tirx\.ptx\.cp_(reduce_)?async_bulk_(g2s|s2g)")
_ACCESS = re.compile(r"tirx\.ptx\.(ld|st|red|atom)(_|$)")
_COUNT = re.compile(r"v(\d)")
_BITS = re.compile(r"[a-z]+?(\d+)(x2)?")


def access_bytes(call: Any) -> int:
    """Return the bytes of whose multiples the addresses in a call are; 1 for any other call.

    Loads and stores: their whole vector (PTX ISA 9.1, 5.4.5). `cp.async`: as many as it copies
    (9.7.9.25.3.1). In bulk: 16 (9.7.9.25.4.1). Copies through a tensor map have no address of
    their own.
    """
    name = str(getattr(call.op, "name", ""))
    if _BULK.match(name):
        return BULK_ALIGNMENT
    if _THREAD.match(name):
        return int(call.args[2])
    if not _ACCESS.match(name):
        return 1
    words = [x.value for x in call.args if isinstance(x, StringImm)]
    count = next((int(m[1]) for x in words if (m := _COUNT.fullmatch(x))), 1)
    element = next((m for x in reversed(words) if (m := _BITS.fullmatch(x)) and x[0] != "v"), None)
    return 1 if element is None else count * int(element[1]) * (2 if element[2] else 1) // 8
