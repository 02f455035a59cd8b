"""A device function as the simulator runs it: a Python generator, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
    min_blocks: int = 1  # blocks that an SM must have room for
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
