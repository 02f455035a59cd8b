"""NVTX ranges around the calls of a model, for Nsight Systems."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from tvm_hopper.errors import require_packages


def nvtx_ranges(vm: Any) -> None:
    """Let a virtual machine open an NVTX range around each function that it calls.

    Ranges have the names of the functions in the module, as `fused_NT_matmul_silu`; kernels have
    them too, as `fused_NT_matmul_silu_kernel`. A range covers the host's side of a call.

    Parameters
    ----------
    vm : tvm.relax.VirtualMachine
        The machine that runs the model. Its instrument is replaced.

    Raises
    ------
    HopperError
        Neither the package `nvtx` nor PyTorch is installed.
    """
    push, pop = _functions()

    def instrument(_func: Any, name: str, before: bool, _result: Any, *_arguments: Any) -> None:
        if before:
            push(name)
        else:
            pop()

    vm.set_instrument(instrument)


def _functions() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """Return what opens and closes a range."""
    if importlib.util.find_spec("nvtx") is None and importlib.util.find_spec("torch") is not None:
        torch: Any = importlib.import_module("torch.cuda.nvtx")
        return torch.range_push, torch.range_pop
    require_packages("relax.nvtx_ranges", "nvtx")
    nvtx: Any = importlib.import_module("nvtx")
    return nvtx.push_range, nvtx.pop_range
