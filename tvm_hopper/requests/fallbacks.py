"""Fallbacks to slower code: shown by `explain`, errors under `strict`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_hopper.errors import cannot_lower
from tvm_hopper.requests.keys import STRICT
from tvm_hopper.requests.options import read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tvm import tirx


@dataclass(frozen=True)
class Fallback:
    """One choice of a slower form: where, what is done, what the fast form needs, how to get it."""

    where: str
    found: str
    need: str
    fix: str = ""
    reasons: tuple[str, ...] = ()  # why not each of the faster forms that were tried

    def __str__(self) -> str:
        text = f"{self.where}: {self.found}; faster with {self.need}"
        return "\n".join([text, *self.reasons])


def report(func: tirx.PrimFunc, fallbacks: Iterable[Fallback]) -> list[str]:
    """Return the texts for `explain`; raise the first if the function is compiled strictly."""
    texts = []
    for fallback in fallbacks:
        if read(STRICT, func):
            raise cannot_lower(
                f"{fallback.where}, {STRICT}",
                "; ".join([fallback.found, *fallback.reasons]),
                fallback.need,
                fallback.fix,
            )
        texts.append(str(fallback))
    return texts
