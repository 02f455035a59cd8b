"""L2 cache policies of copies (PTX ISA 9.1, 9.7.10.21 createpolicy)."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

_HINT = ".L2::cache_hint"


def create_policy(policy: Any, hint: str) -> Any:
    """Store into a uint64 register what L2 is to do with all of a copy's bytes.

    `hint` is "evict_first", "evict_last" or "evict_normal".
    """
    return T.ptx[f"createpolicy.fractional.L2::{hint}.b64"](policy)


def load_hinted(words: list[Any], source: Any, hint: str, policy: Any) -> Any:
    """Load 2 or 4 words of 32 bits, neighbours in memory, and say how long they are wanted.

    `ld.global.L1::x.L2::cache_hint`, 9.7.9.8; `words` are registers, `hint` is that of the policy.
    """
    name = f"ld.global.L1::{hint}{_HINT}.v{len(words)}.b32"
    return T.ptx[name](*words, source, policy)


def store_hinted(target: Any, words: list[Any], policy: Any) -> Any:
    """Store 2 or 4 words of 32 bits to neighbours in memory, by a policy.

    `st.global.L2::cache_hint`, 9.7.9.11.
    """
    return T.ptx[f"st.global{_HINT}.v{len(words)}.b32"](target, *words, policy)


def hinted(name: str, policy: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the name of a copy with a policy, and its operand; without one the name as it is."""
    return (name, ()) if policy is None else (name + _HINT, (policy,))
