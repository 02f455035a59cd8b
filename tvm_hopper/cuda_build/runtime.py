"""TVM's CUDA runtime on a machine whose only CUDA is pip's.

`libtvm_runtime_cuda.so` needs `libcudart.so.13`, which `nvidia-cuda-runtime` installs where the
loader does not look; TVM then goes on without a CUDA runtime and without a word.  Loading pip's
library first is enough.  Done when a kernel of ours is built, and only where there is a driver.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path

from .toolkits import pip_folders

CUDART = "libcudart.so.13"
LOADER = "ffi.Module.load_from_bytes.cuda"  # of CUDA modules inside of libraries


def pip_library(name: str) -> Path | None:
    """Return the path of a library from pip's CUDA packages."""
    return next((f / name for f in pip_folders("cu13", "lib") if (f / name).is_file()), None)


def loadable(name: str | Path) -> bool:
    """Tell whether the loader finds a library."""
    try:
        ctypes.CDLL(str(name), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def is_loaded() -> bool:
    """Tell whether TVM can launch CUDA kernels in this process."""
    from tvm.base import _LOADED_LIBS

    return "tvm_runtime_cuda" in _LOADED_LIBS


def ensure() -> bool:
    """Load TVM's CUDA runtime if TVM itself could not; return whether it is there."""
    if is_loaded():
        return True
    if not _has_driver_and_runtime():
        return False
    import tvm_ffi
    from tvm.base import _LOADED_LIBS
    from tvm_ffi.libinfo import load_lib_ctypes

    # Ours leads here (integration/on_demand.py), and the library does not replace what is there.
    if tvm_ffi.get_global_func(LOADER, allow_missing=True) is not None:
        tvm_ffi.registry.remove_global_func(LOADER)
    folder = Path(_LOADED_LIBS["tvm_runtime"]._name).resolve().parent
    try:
        _LOADED_LIBS["tvm_runtime_cuda"] = load_lib_ctypes(
            package="tvm",
            target_name="tvm_runtime_cuda",
            extra_lib_paths=[folder],
            mode="RTLD_LOCAL",
        )
    except (OSError, RuntimeError):
        return False
    return True


def ensure_alone() -> bool:
    """Load TVM's CUDA runtime without `import tvm`; return whether it is there.

    A process that runs saved kernels needs two small libraries of TVM's, and no compiler.
    """
    if "tvm" in sys.modules:
        return ensure()
    if not _has_driver_and_runtime():
        return False
    import tvm_ffi  # noqa: F401  its library, on which the others depend

    spec = importlib.util.find_spec("tvm")
    folders = (spec.submodule_search_locations if spec else None) or []
    names = ("libtvm_runtime.so", "libtvm_runtime_cuda.so")
    found = [Path(folder, "lib") for folder in folders if Path(folder, "lib", names[0]).is_file()]
    return bool(found) and all(loadable(found[0] / name) for name in names)


def _has_driver_and_runtime() -> bool:
    pip = pip_library(CUDART)
    return loadable("libcuda.so.1") and (loadable(CUDART) or (pip is not None and loadable(pip)))
