"""The CUDA compile step of our kernels, and of ours alone.

TVM asks `tvm_callback_cuda_compile` with nothing but a text.  A text that `capture` knows is ours
is compiled here, its log is kept and judged; any other goes to the callback that was there before.
The callback is wrapped when the first kernel of ours is lowered, not at import.  On a machine
without CUDA's runtime TVM keeps the text and never asks; `cubin` compiles it then.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import tvm_ffi

from tvm_hopper import assembler_log, capture
from tvm_hopper.assembler_log import KernelFacts
from tvm_hopper.capture import Captured
from tvm_hopper.cuda_compilers import math_flags, with_nvcc, with_nvrtc
from tvm_hopper.errors import CompileError

_CALLBACK = "tvm_callback_cuda_compile"
_COMPILERS = {"nvrtc": with_nvrtc, "nvcc": with_nvcc}
ARCH = "sm_90a"

_lock = threading.Lock()
_results: OrderedDict[tuple, Compiled] = OrderedDict()


@dataclass(frozen=True)
class Compiled:
    """A cubin with all that is known of how it came to be."""

    cubin: bytes = field(repr=False)
    log: str = field(repr=False)
    compiler: str
    math_flags: tuple[str, ...]
    kernels: dict[str, KernelFacts]


def compile_source(
    source: str,
    compiler: str = "nvrtc",
    fast_math: bool = False,
    check_log: bool = True,
    strict: bool = False,
) -> Compiled:
    """Compile a CUDA text for Hopper; refuse what the assembler had to mend."""
    if compiler not in _COMPILERS:
        need = " or ".join(map(repr, _COMPILERS))
        raise CompileError(f"tvm_hopper.compiler: found {compiler!r}; need {need}")
    key = (capture.source_hash(source), compiler, fast_math)
    with _lock:
        result = _results.get(key)
    if result is None:
        cubin, log = _COMPILERS[compiler](source, ARCH, fast_math)
        facts = assembler_log.read_facts(log)
        result = Compiled(cubin, log, compiler, tuple(math_flags(fast_math)), facts)
        with _lock:
            _results[key] = result
            while len(_results) > capture.KEPT:
                _results.popitem(last=False)
    if check_log:
        assembler_log.check(result.log, result.kernels, strict)
    return result


def compile_record(record: Captured) -> Compiled:
    """Compile one CUDA module of ours with the options that its build asked for."""
    return compile_source(
        record.source,
        record.compiler,
        record.fast_math,
        record.check_assembler_log,
        record.strict,
    )


def compiled(executable: object) -> Compiled:
    """Return the compiled form of the one CUDA module of ours in an executable."""
    return compile_record(capture.lookup(executable))


def cubin(executable: object) -> bytes:
    """Return the machine code of our kernels in an executable, with or without a GPU here.

    Parameters
    ----------
    executable : Executable
        What `tvm.compile` returned in this process.

    Returns
    -------
    cubin : bytes
        An ELF file, as the CUDA driver loads it.

    Raises
    ------
    HopperError
        It holds no kernels of ours, or several CUDA modules of them.
    CompileError
        The compiler refuses a kernel, or had to mend it.
    TypeError
        It is no executable.
    """
    return compiled(executable).cubin


def install() -> None:
    """Stand in front of TVM's CUDA compile callback, whichever it is."""
    global _ours
    previous = tvm_ffi.get_global_func(_CALLBACK, allow_missing=True)
    if previous is not None and _ours is not None and previous.same_as(_ours):
        return

    def compile_cuda(code: str) -> bytes:
        record = capture.find(str(code))
        if record is not None:
            return compile_record(record).cubin
        if previous is None:
            raise CompileError(f"{_CALLBACK}: found no compiler; need one for a foreign kernel")
        return previous(code)

    tvm_ffi.register_global_func(_CALLBACK, compile_cuda, override=True)
    _ours = tvm_ffi.get_global_func(_CALLBACK)


_ours: tvm_ffi.Function | None = None
