"""State that the emitters share, and their result: a Python generator, and facts about it."""

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
    """Shared state of the emitters: variables, buffers, constants and the current mask."""

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


@dataclass
class KernelCode:
    """The compiled kernel: `run(w, m0)` is the generator function of one warp."""

    run: Any
    source: str
    statements: list[Any]
    unsupported: list[tuple[str, int]]
    shared: list[tuple[str, str, int, int]]  # variable, scope, bytes, alignment
    params: list[str]
    name: str = "kernel"
    acquire_sites: set[int] = field(default_factory=set)
    lone_try_waits: list[int] = field(default_factory=list)
    min_itemsize: int = 2
    stored_params: set[str] = field(default_factory=set)
    loaded_params: set[str] = field(default_factory=set)
    bounds_known: bool = False  # the kernel states its registers at entry
    min_blocks: int = 1  # blocks that must fit on an SM
    setmaxnreg_site: int = 0
    line_sites: list[int] = field(default_factory=list)  # statement of each line of `source`

    @property
    def filename(self) -> str:
        """Name of the generated module in a traceback."""
        return f"<{self.name}>"

    def site_of(self, error: BaseException) -> int:
        """Return the statement that was running when an exception left the generated code."""
        site, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.filename:
                site = self.line_sites[trace.tb_lineno - 1]
            trace = trace.tb_next
        return site
