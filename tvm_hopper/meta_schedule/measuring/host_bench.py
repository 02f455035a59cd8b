"""Time a CPU function as if it were a kernel, to test tuning without a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tvm

from . import tensors
from .artifact import TensorArgument

REPEATS = 5


class HostBench:
    """The CPU of this machine."""

    about: dict[str, Any] = {"name": "CPU"}  # noqa: RUF012

    def run(
        self,
        function: Callable[..., Any],
        arguments: tuple[TensorArgument, ...],
        repeats: int | None,
    ) -> dict[str, Any]:
        """Time a function; there is no clock to correct by."""
        values = []
        for index, argument in enumerate(arguments):
            tensor = tvm.runtime.empty(argument.shape, argument.dtype, tvm.cpu())
            drawn = tensors.random_values(argument.shape, argument.dtype, index)
            values.append(tensor.copyfrom(drawn))
        seconds = []
        for _ in range(1 + (repeats or REPEATS)):
            begin = time.perf_counter()
            function(*values)
            seconds.append(time.perf_counter() - begin)
        return {"seconds": seconds[1:], "corrected": seconds[1:], "megahertz": 0.0}
