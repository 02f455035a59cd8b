"""What the backend did with each graph of this process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

MOST_RECORDS = 256


@dataclass
class GraphRecord:
    """One graph that `torch.compile` captured.

    - `operators`: how many it has.
    - `seconds`: that the build took.
    - `reason`: why PyTorch runs it; empty if it was built.
    - `left`: why PyTorch runs a part of it.
    - `executables`: what was built, for `tvm_hopper.relax.report`; one without `left`.
    """

    operators: int
    seconds: float = 0.0
    reason: str = ""
    left: str = ""
    executables: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        if self.reason:
            return f"{self.operators} operators: PyTorch, {self.reason}"
        parts = f" in {len(self.executables)} parts" if self.left else ""
        left = f"; PyTorch runs the rest: {self.left}" if self.left else ""
        return f"{self.operators} operators: built{parts} in {self.seconds:.1f} s{left}"


class TorchReport(list[GraphRecord]):
    """Records of graphs, in the order of their compilation."""

    def __str__(self) -> str:
        return "\n".join(f"graph {i}: {x}" for i, x in enumerate(self)) or "no graph"


_RECORDS: deque[GraphRecord] = deque(maxlen=MOST_RECORDS)


def keep(record: GraphRecord) -> None:
    """Add a record, and forget the oldest one."""
    _RECORDS.append(record)


def report(clear: bool = False) -> TorchReport:
    """Return what the backend did with the graphs of this process: printed, a line a graph.

    Parameters
    ----------
    clear : bool
        Forget them afterwards.

    Returns
    -------
    report : TorchReport
        A list of `GraphRecord`.
    """
    found = TorchReport(_RECORDS)
    if clear:
        _RECORDS.clear()
    return found
