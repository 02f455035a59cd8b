"""Forms of modelled instructions that are not modelled themselves."""

from __future__ import annotations

from collections.abc import Mapping

_SPACES = ("global", "shared", "shared::cta", "shared::cluster")
_LATER = ("im2col::w", "im2col::w::128", "im2col_no_offs::w")
_ADDRESSES = ("cvta", "cvta_generic", "isspacep")


def refused_form(name: str, mods: Mapping[str, str]) -> str:
    """Say why a form of an instruction with a handler is not modelled; empty if it is."""
    if mods.get("type") == "b128":
        return "registers of 128 bits"
    if "im2col" in name:
        wide = (mods.get("multicast") or "").endswith("32b")
        if mods.get("load_mode") in _LATER or mods.get("report") or mods.get("cta_group") or wide:
            return "a later chip's modes, reports, CTA groups and masks of 32 bits"
    if name in _ADDRESSES and mods["space"] not in _SPACES:
        return f"the state space {mods['space']}"
    return ""
