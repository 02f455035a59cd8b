"""What the emitters share: names, buffers, constants, and the mask in force."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Code = tuple[str, bool]  # text, and whether the value varies over the lanes


@dataclass
class BufferInfo:
    """How generated code reaches one buffer.

    `kind` is "local" (registers, `name` holds an array (32, n)), "shared" or "global" (`name` holds
    an address); `shape` is for buffers that still have several dimensions.
    """

    kind: str
    name: str
    dtype: str
    shape: tuple[Any, ...] = ()
    root: str = ""


@dataclass
class Scope:
    """What the emitters share: variables, buffers, constants and the mask in force."""

    buffers: dict[Any, BufferInfo] = field(default_factory=dict)
    values: dict[Any, Code] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    mask: str = "m0"
    fresh: int = 0

    def name(self, stem: str) -> str:
        """Return a new Python name."""
        self.fresh += 1
        clean = "".join(c if c.isascii() and c.isalnum() else "_" for c in stem[:40])
        return f"{'n' if clean[:1].isdigit() else ''}{clean}_{self.fresh}"
