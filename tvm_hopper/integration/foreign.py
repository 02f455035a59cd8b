"""Answer TVM's CUDA queries on machines without CUDA, for kernels that are not ours.

Processes that load a module, or compile its text, may never use our lowering. So `import tvm`
installs this. Heavy imports wait until TVM's own compiler has failed.
"""

from __future__ import annotations

import ctypes
from typing import Any

COMPILE = "tvm_callback_cuda_compile"
DRIVER = "libcuda.so.1"


def install() -> None:
    """Stand after TVM's callback that compiles CUDA text."""
    import tvm_ffi

    previous = tvm_ffi.get_global_func(COMPILE, allow_missing=True)
    if previous is None:
        return

    def compile_cuda(text: str) -> Any:
        try:
            return previous(text)
        except Exception as error:
            from tvm_hopper.cuda_build import foreign

            return foreign.compile_again(str(text), error)

    tvm_ffi.register_global_func(COMPILE, compile_cuda, override=True)


def load_runtime() -> None:
    """Load TVM's CUDA runtime, where there is a driver and TVM could not load it by itself."""
    from tvm.base import _LOADED_LIBS

    if "tvm_runtime_cuda" in _LOADED_LIBS:
        return
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return
    from tvm_hopper.cuda_build import runtime

    runtime.ensure()
