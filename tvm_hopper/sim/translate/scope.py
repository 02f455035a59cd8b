"""State that the emitters share: names, buffers, constants, active mask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from tvm_hopper.sim.tir import dtype_of, split_lanes

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


def elements_of(info: BufferInfo, indices: Any) -> Any:
    """Return indices of scalars, also where registers hold vectors: TVM may make them of these."""
    _, vector = split_lanes(info.dtype)
    if info.kind != "local" or vector == 1:
        return indices
    (index,) = indices  # TVM flattens a buffer before it changes the type of its elements
    base, count = (index.base, int(index.lanes)) if isinstance(index, tirx.Ramp) else (index, 1)
    return [tirx.Ramp(base * vector, tirx.const(1, dtype_of(base)), count * vector)]
