"""NVTX ranges around the calls of a model, for Nsight Systems."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from tvm_hopper.errors import require_packages


def nvtx_ranges(vm: Any) -> None:
    """Let a virtual machine open an NVTX range around each function that it calls, by its name.

    A range covers the host's side of a call. Kernels have the names, too, with `_kernel` behind.

    Parameters
    ----------
    vm : tvm.relax.VirtualMachine
        The machine that runs the model. Its instrument is replaced.

    Raises
    ------
    HopperError
        Neither the package `nvtx` nor PyTorch is installed.
    """
    ranges: Any
    if importlib.util.find_spec("nvtx") is None and importlib.util.find_spec("torch") is not None:
        ranges = importlib.import_module("torch.cuda.nvtx")
        push, pop = ranges.range_push, ranges.range_pop
    else:
        require_packages("relax.nvtx_ranges", "nvtx")
        ranges = importlib.import_module("nvtx")
        push, pop = ranges.push_range, ranges.pop_range

    def instrument(_func: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> None:
        if before:
            push(name)
        else:
            pop()

    vm.set_instrument(instrument)
