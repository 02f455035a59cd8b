"""Compile TVM's own kernels on a machine whose only CUDA comes from pip.

TVM compiles them by NVRTC with the headers of a CUDA toolkit, and without one not at all. pip's
packages have the same headers in other folders, and our own kernels are compiled with them. If TVM
finds no headers, its function is called again with those folders: options, flags and formats are
TVM's, fast math among them. NVRTC is the one that fits those headers (`nvrtc.py`).

    tvm_callback_cuda_compile(text)
      TVM's own                            RuntimeError: Cannot find CUDA headers in /usr/local
      TVM's own, with the folders of pip's headers

A callback that somebody put in TVM's place keeps the last word: only TVM's own words about headers
are answered here.
"""

from __future__ import annotations

import builtins
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm_hopper.errors import CompileError

from . import nvrtc
from .compilers import KEPT, source_hash
from .toolkits import INSTALL, include_folders

NO_HEADERS = (
    "Cannot find CUDA headers",
    "Cannot find CUDA path",
    'open source file "cuda/std/',
    "libnvrtc",  # cuda-bindings finds no NVRTC of its own major version
)
NEEDED = ("cuda_runtime.h", "cuda/std/cstdint")
COMPILED = "compiled with TVM's own options and CUDA headers where TVM did not look: it found none"

_lock = threading.Lock()
_compiled: OrderedDict[str, None] = OrderedDict()


def compile_again(text: str, error: Exception) -> Any:
    """Compile a text for which TVM found no headers; raise what TVM raised for any other reason.

    - `text`: CUDA text of kernels that are not ours.
    - `error`: what the callback before raised.
    - returns (bytearray): as TVM's callback returns it.
    - raises CompileError: there are none at all.
    """
    if not any(words in str(error) for words in NO_HEADERS):
        raise error
    runtime, library = map(_folder_of, NEEDED)
    if runtime is None or library is None:
        reason = str(error).strip().splitlines()[-1]
        raise CompileError(
            f"kernels of TVM's own: found no CUDA headers ({reason}); need those of a CUDA toolkit "
            f"or of pip; {INSTALL}"
        ) from error
    cubin = _stock_compiler(runtime.parent)(text, "cubin", options=[f"-I{library}"])
    with _lock:
        _compiled[source_hash(text)] = None
        while len(_compiled) > KEPT:
            _compiled.popitem(last=False)
    return cubin


def is_compiled_here(text: str) -> bool:
    """Tell whether a text was compiled by this fallback in this process."""
    with _lock:
        return source_hash(text) in _compiled


def _folder_of(header: str) -> Path | None:
    folders = include_folders(nvrtc.version()[0])
    return next((folder for folder in folders if (folder / header).is_file()), None)


def _stock_compiler(home: Path) -> Callable[..., Any]:
    """Return TVM's function with other answers: where CUDA is, and which NVRTC to call.

    The process goes on with its own. An environment variable would say the same to every thread.
    """
    from tvm.support import nvcc

    def import_module(name: str, *more: Any) -> Any:
        if name == "cuda.bindings":
            return types.SimpleNamespace(nvrtc=nvrtc)
        return builtins.__import__(name, *more)

    stock = nvcc._compile_cuda_nvrtc
    names = {
        **stock.__globals__,
        "find_cuda_path": lambda: str(home),
        "__builtins__": {**vars(builtins), "__import__": import_module},
    }
    return types.FunctionType(
        stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__
    )
