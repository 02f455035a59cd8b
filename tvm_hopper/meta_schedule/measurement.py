"""Data of one measurement: times, machine and versions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """Results of a runner for one artifact.

    - `seconds`: of each repeat, between events of the device.
    - `corrected`: what they would be at the highest clock: seconds times the clock that was read
      next to them, over the highest. Of a kernel that waits for memory this says too little.
    - `megahertz`: clock of an SM, the median over the repeats.
    - `worker`: which GPU, and for a remote one, of which server.
    - `device`: what that GPU says of itself: name, driver, power limit, number of SMs.
    - `is_fake`: whether nothing was measured.
    - `worker_seconds`: of the worker, from the artifact's files to the last result.
    """

    seconds: tuple[float, ...]
    corrected: tuple[float, ...]
    megahertz: float
    worker: str
    device: Mapping[str, Any] = field(default_factory=dict)
    is_fake: bool = False
    worker_seconds: float = 0.0

    @property
    def spread(self) -> float:
        """Half of what lies between the 10th and the 90th of a hundred repeats, over the median."""
        if len(self.corrected) < 3:
            return 0.0
        tenths = statistics.quantiles(self.corrected, n=10)
        return (tenths[-1] - tenths[0]) / 2 / statistics.median(self.corrected)


@dataclass(frozen=True)
class Contested:
    """Results of artifacts that were compared on one GPU, alternating.

    - `verdicts`: of each: "equal", "wrong" or "unchecked", and why.
    - `sustained`, `single`: seconds of each, round by round: back to back at full load, and after
      pauses. The library comes last, where there is one; those of one that is wrong are empty.
    - `library`: its name, or nothing.
    - `worker`, `device`, `is_fake`: as of a measurement.
    """

    verdicts: tuple[tuple[str, str], ...]
    sustained: tuple[tuple[float, ...], ...]
    single: tuple[tuple[float, ...], ...]
    library: str
    worker: str
    device: Mapping[str, Any] = field(default_factory=dict)
    is_fake: bool = False


def as_contested(reply: Mapping[str, Any], worker: str, device: Mapping[str, Any]) -> Contested:
    """Read the reply of a worker to a contest."""
    return Contested(
        verdicts=tuple((str(x), str(why)) for x, why in reply["verdicts"]),
        sustained=tuple(tuple(float(x) for x in row) for row in reply["sustained"]),
        single=tuple(tuple(float(x) for x in row) for row in reply["single"]),
        library=str(reply.get("library", "")),
        worker=worker,
        device=dict(device),
        is_fake=bool(reply.get("is_fake", False)),
    )


def as_measurement(reply: Mapping[str, Any], worker: str, device: Mapping[str, Any]) -> Measurement:
    """Read the reply of a worker."""
    return Measurement(
        seconds=tuple(float(x) for x in reply["seconds"]),
        corrected=tuple(float(x) for x in reply["corrected"]),
        megahertz=float(reply["megahertz"]),
        worker=worker,
        device=dict(device),
        is_fake=bool(reply.get("is_fake", False)),
        worker_seconds=float(reply.get("worker_seconds", 0.0)),
    )
