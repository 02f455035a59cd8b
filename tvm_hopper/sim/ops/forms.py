"""Forms of modelled instructions that are not modelled themselves."""

from __future__ import annotations

from collections.abc import Mapping

_SPACES = ("global", "shared", "shared::cta", "shared::cluster")
_ADDRESSES = ("cvta", "cvta_generic", "isspacep")


def refused_form(name: str, mods: Mapping[str, str]) -> str:
    """Say why a form of an instruction with a handler is not modelled; empty if it is."""
    if mods.get("type") == "b128":
        return "registers of 128 bits"
    if name in _ADDRESSES and mods["space"] not in _SPACES:
        return f"the state space {mods['space']}"
    return ""
