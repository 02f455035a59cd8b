"""NVRTC bindings by ctypes, in the form of `cuda.bindings.nvrtc`.

cuda-bindings loads NVRTC of its own major version, and PyTorch pins cuda-bindings: with some
PyTorch that is CUDA 12 next to our headers of CUDA 13. Loaded here, library and headers fit each
other whatever else is installed. Each function returns a status and its results, so that TVM's own
compile function can use this module, too (`foreign.py`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from .toolkits import MAJORS, nvrtc_files


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Load NVRTC.

    - raises ImportError: there is none of a version that we know.
    """
    for major in MAJORS:
        for name in nvrtc_files(major):
            try:
                for part in Path(name).parent.glob("libnvrtc-builtins.so.*") if "/" in name else ():
                    ctypes.CDLL(str(part))  # NVRTC 13.0 requests it by its bare name
                return ctypes.CDLL(name)
            except OSError:
                continue
    raise ImportError("no libnvrtc of CUDA " + " or ".join(map(str, MAJORS)))


def version() -> tuple[int, int]:
    """Return the version of the NVRTC that compiles; that of the preferred one if there is none."""
    try:
        _, major, minor = nvrtcVersion()
    except ImportError:
        return MAJORS[0], 0
    return major, minor


class nvrtcResult(int):  # noqa: D101  the names are NVRTC's
    NVRTC_SUCCESS = 0

    @property
    def name(self) -> str:
        """The name that NVRTC gives to this status."""
        return nvrtcGetErrorString(self)[1].decode()


def _call(name: str, *arguments: Any) -> nvrtcResult:
    return nvrtcResult(getattr(library(), name)(*arguments))


def _strings(texts: Sequence[bytes] | None) -> Any:
    return (ctypes.c_char_p * len(texts))(*texts) if texts else None


def nvrtcVersion() -> tuple[nvrtcResult, int, int]:
    """Return the version of NVRTC."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    status = _call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return status, major.value, minor.value


def nvrtcGetErrorString(status: int) -> tuple[nvrtcResult, bytes]:
    """Return the name of a status."""
    function = library().nvrtcGetErrorString
    function.restype = ctypes.c_char_p
    return nvrtcResult(0), function(int(status))


def nvrtcCreateProgram(
    text: bytes,
    name: bytes,
    count: int,
    headers: Sequence[bytes] | None,
    names: Sequence[bytes] | None,
) -> tuple[nvrtcResult, Any]:
    """Return a program of a text and of headers that it may include by name."""
    program = ctypes.c_void_p()
    more = (text, name, count, _strings(headers), _strings(names))
    return _call("nvrtcCreateProgram", ctypes.byref(program), *more), program


def nvrtcCompileProgram(
    program: Any, count: int, options: Sequence[bytes] | None
) -> tuple[nvrtcResult]:
    """Compile a program."""
    return (_call("nvrtcCompileProgram", program, count, _strings(options)),)


def nvrtcDestroyProgram(program: Any) -> tuple[nvrtcResult]:
    """Free a program."""
    return (_call("nvrtcDestroyProgram", ctypes.byref(program)),)


def _size(name: str, program: Any) -> tuple[nvrtcResult, int]:
    size = ctypes.c_size_t()
    return _call(name, program, ctypes.byref(size)), size.value


def _fill(name: str, program: Any, room: bytearray) -> tuple[nvrtcResult]:
    return (_call(name, program, (ctypes.c_char * len(room)).from_buffer(room)),)


def nvrtcGetProgramLogSize(program: Any) -> tuple[nvrtcResult, int]:
    """Return the bytes of the log."""
    return _size("nvrtcGetProgramLogSize", program)


def nvrtcGetProgramLog(program: Any, room: bytearray) -> tuple[nvrtcResult]:
    """Write the log to `room`."""
    return _fill("nvrtcGetProgramLog", program, room)


def nvrtcGetCUBINSize(program: Any) -> tuple[nvrtcResult, int]:
    """Return the bytes of the machine code."""
    return _size("nvrtcGetCUBINSize", program)


def nvrtcGetCUBIN(program: Any, room: bytearray) -> tuple[nvrtcResult]:
    """Write the machine code to `room`."""
    return _fill("nvrtcGetCUBIN", program, room)


def nvrtcGetPTXSize(program: Any) -> tuple[nvrtcResult, int]:
    """Return the bytes of the PTX."""
    return _size("nvrtcGetPTXSize", program)


def nvrtcGetPTX(program: Any, room: bytearray) -> tuple[nvrtcResult]:
    """Write the PTX to `room`."""
    return _fill("nvrtcGetPTX", program, room)
