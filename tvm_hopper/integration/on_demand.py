"""Register global functions at `import tvm` that load their modules when called.

A process that only loads a library or serves a client has done `import tvm` and nothing else.
"""

from __future__ import annotations

import importlib
from typing import Any

MEASURE = "tvm_hopper.rpc.measure"
LOADER = "ffi.Module.load_from_bytes.cuda"  # as in cuda_build/runtime.py, which `import tvm` spares


def register() -> None:
    """Register them, but for a loader of CUDA modules where TVM has its own."""
    import tvm_ffi

    @tvm_ffi.register_global_func(MEASURE, override=True)
    def measure(*arguments: Any) -> str:
        module = importlib.import_module("tvm_hopper.meta_schedule.remote.session")
        return str(module.measure(*arguments))

    if tvm_ffi.get_global_func(LOADER, allow_missing=True) is None:
        tvm_ffi.register_global_func(LOADER, _load_cuda)


def _load_cuda(data: bytes) -> Any:
    """Load TVM's CUDA runtime, where pip alone has brought CUDA, and then the module."""
    import tvm_ffi

    from tvm_hopper.cuda_build import runtime
    from tvm_hopper.errors import HopperError

    if not runtime.ensure():
        raise HopperError(
            "library with CUDA kernels: found no CUDA driver or no CUDA 13 runtime; need both to "
            "load it; `python -m tvm_hopper doctor` says which is missing"
        )
    return tvm_ffi.get_global_func(LOADER)(data)
