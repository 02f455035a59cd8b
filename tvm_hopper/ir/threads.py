"""Thread axes: the threads of a thread block, or one thread on other processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from .build import with_body
from .rewrite import replace_nodes
from .types import For, Stmt, Var
from .walk import thread_axes


@dataclass(frozen=True)
class KernelThreads:
    """The loop bound to threadIdx.x; without one a single thread runs all of the kernel."""

    kernel: Any
    axis: For | None

    @property
    def var(self) -> Var | None:
        """The variable that numbers them; None: there is one."""
        return None if self.axis is None else self.axis.loop_var

    @property
    def count(self) -> Any:
        """Number of threads, as an expression."""
        return tirx.IntImm("int32", 1) if self.axis is None else self.axis.extent

    @property
    def body(self) -> Stmt:
        """The statement that each thread runs."""
        return self.kernel if self.axis is None else self.axis.body

    def run(self, body: Stmt) -> Any:
        """Return the kernel with other statements for its threads."""
        if self.axis is None:
            return body
        return replace_nodes(self.kernel, For, {self.axis: with_body(self.axis, body)})


def threads_of(kernel: Any) -> KernelThreads:
    """Find who runs the statements of a kernel."""
    return KernelThreads(kernel, thread_axes(kernel).get("threadIdx.x"))
