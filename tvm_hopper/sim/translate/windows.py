"""Operands that must be in the executing CTA's own shared memory.

The window of `.shared::cta` holds the executing CTA's own shared memory, and `.shared` without more
means that; the addresses that `mapa` gives are of `.shared::cluster` (PTX ISA, 5.1.7 Shared State
Space, and mapa).
"""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvm_hopper.sim.tir import PtxCall, short_name

_OWN = ("shared", "shared::cta")
_OPERANDS = {"space": ("addr", "p"), "dst": ("dst_mem",), "src": ("src_mem",)}  # by modifier
_SAME_PLACE = ("reinterpret", "cuda.cvta_generic_to_shared", "buffer_data")


def operands_in_own_window(ptx: PtxCall) -> list[Any]:
    """Return the addresses that an instruction takes for the executing CTA's, unless they are so.

    What is written as the address of an element of a buffer is: a buffer is this CTA's.
    """
    return [
        value
        for modifier, names in _OPERANDS.items()
        if ptx.mods.get(modifier) in _OWN
        for name in names
        for value in ptx.operands.get(name, ())
        if value is not None and not _of_buffer(value)
    ]


def _of_buffer(value: Any) -> bool:
    while isinstance(value, ir.Call):
        name = short_name(value)
        if name == "address_of":
            return True
        if name not in _SAME_PLACE or not value.args:
            return False
        value = value.args[0]
    return False
