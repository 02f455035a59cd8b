"""Detect misspelt keys."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable

from .keys import FAST_MATH, KEYS, PIPELINE_KEYS, PREFIX

_STOCK_PREFIX = re.compile(r"tvm_hopper\.|software_pipeline_|tirx\.enable_")
_LETTERS = PREFIX[:-1].replace("_", "")
_DOTS = ".:/"
_NEARLY = 0.85  # likeness of a prefix that is taken for a misspelt one of ours
_ALIKE = 0.8  # likeness of what follows a prefix that may be another project's
CUTOFF_WITH_OURS = 0.6  # in a function that carries keys of ours


@functools.lru_cache(maxsize=1024)  # requested every annotation of every build
def claims_to_be_ours(name: str, beside_ours: bool = False) -> bool:
    """Tell whether a key has our prefix, or one that can only be meant for it.

    Case and separators do not matter ("TVM_HOPPER.x", "tvm.hopper.x", "tvm_hopper_x"), and one
    letter may be wrong. "hopper.x" may be another project's: it claims where `x` is like a key of
    ours, in a function that carries such keys (`beside_ours`) already where it is a little.
    """
    likeness = CUTOFF_WITH_OURS if beside_ours else _ALIKE
    dotted = any(dot in name for dot in _DOTS)
    return any(
        head == _LETTERS
        or _is_misspelt(head)
        or (dotted and head == "hopper" and bool(_nearest(rest, KEYS, likeness)))
        for head, rest in _heads(name)
    )


def closest(name: str, among: Iterable[str] | None = None) -> str:
    """Return the known key nearest to a misspelt one, or an empty string."""
    known = [*KEYS, *PIPELINE_KEYS, FAST_MATH] if among is None else list(among)
    nearest = (_nearest(rest, known, CUTOFF_WITH_OURS) for _, rest in reversed(_heads(name)))
    return next(filter(None, nearest), "")


def is_misspelt_pipeline_key(name: str) -> bool:
    """Tell whether a key can only be meant for one of TVM's three pipeline annotations."""
    if name in PIPELINE_KEYS:
        return False
    return name.startswith("software_pipeline") or bool(_like_pipeline_key(name, _NEARLY))


def closest_pipeline_key(name: str) -> str:
    """Return the one of TVM's three pipeline annotations that is nearest to a misspelt one."""
    return _like_pipeline_key(name, 0.0)


def _like_pipeline_key(name: str, cutoff: float) -> str:
    matches = difflib.get_close_matches(name.lower(), PIPELINE_KEYS, n=1, cutoff=cutoff)
    return next(iter(matches), "")


def _heads(name: str) -> list[tuple[str, str]]:
    """List the ways to cut a key into prefix and rest: at its dots, or else at its words."""
    parts = re.split(f"[{_DOTS}]", name)
    if len(parts) == 1:
        parts = [*filter(None, re.split(r"[\W_]+", name))]
        cuts = [(parts[:n], parts[n:]) for n in (1, 2) if n <= len(parts)]
    else:
        cuts = [(parts[:n], parts[n:]) for n in range(1, len(parts))]
    return [(_letters("".join(head)), "_".join(rest)) for head, rest in cuts]


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.lower())


def _is_misspelt(head: str) -> bool:
    """Tell a prefix with one letter wrong from a longer one ("tvm_hopper2", "tvm_hopper_extra")."""
    if not head.isalpha() or abs(len(head) - len(_LETTERS)) > 1:
        return False
    return difflib.SequenceMatcher(None, head, _LETTERS).ratio() > _NEARLY


def _nearest(rest: str, known: Iterable[str], cutoff: float) -> str:
    names = {_letters(_STOCK_PREFIX.sub("", key)): key for key in known}
    matches = difflib.get_close_matches(_letters(rest), names, n=1, cutoff=cutoff)
    return names[matches[0]] if matches else ""
