"""Records of builds: CUDA text, TIR and options of each of our modules, looked up by text.

An executable holds CUDA text and machine code but no TIR, which `simulate`, `verify` and `explain`
need.  The text is the link: nothing else of a build stays in what TVM returns.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import tvm

from tvm_hopper.errors import HopperError
from tvm_hopper.facts.arch import DEFAULT_ARCH, Arch

from .compilers import KEPT, Compiled, compile_source, source_hash

_records: OrderedDict[str, BuildRecord] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class BuildRecord:
    """One CUDA module of ours: its text, and the TIR that it was printed from."""

    source: str
    host: tvm.IRModule  # every host function of the build
    device: tvm.IRModule  # our kernels alone
    compiler: str  # "nvrtc" or "nvcc"
    fast_math: bool
    check_assembler_log: bool
    strict: bool = False  # some function of the module is compiled so
    arch: Arch = DEFAULT_ARCH

    @property
    def key(self) -> str:
        """Return the hash under which the record is kept."""
        return source_hash(self.source)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the names of the kernels, as the CUDA text has them."""
        return tuple(gv.name_hint for gv in self.device.functions)

    def compile(self) -> Compiled:
        """Compile the text as its build requested it, or return what that gave before."""
        return compile_source(
            self.source,
            self.compiler,
            self.fast_math,
            self.check_assembler_log,
            self.strict,
            self.arch,
        )


def keep(record: BuildRecord) -> None:
    """Keep a record, and forget the oldest ones."""
    with _lock:
        _records[record.key] = record
        _records.move_to_end(record.key)
        while len(_records) > KEPT:
            _records.popitem(last=False)


def find(source: str) -> BuildRecord | None:
    """Return the record of a CUDA text, if it was built here and is still kept."""
    with _lock:
        return _records.get(source_hash(source))


def cuda_sources(executable: object) -> list[str]:
    """Return the CUDA texts inside an executable or a runtime module, ours or not."""
    module = executable
    if not isinstance(module, tvm.runtime.Module):  # which takes any attribute for a kernel
        module = getattr(executable, "mod", None)
    if not isinstance(module, tvm.runtime.Module):
        raise TypeError(
            f"executable: found {type(executable).__name__}; need what tvm.compile returned"
        )
    found, queue = [], [module]
    while queue:
        current = queue.pop(0)
        if current.kind == "cuda":
            found.append(str(current.inspect_source()))
        queue.extend(current.imports)
    return found


def lookup_all(executable: object) -> list[BuildRecord]:
    """Return the records of every CUDA module of ours in an executable; refuse a foreign one."""
    sources = cuda_sources(executable)
    if not sources:
        raise HopperError(
            "executable: found no CUDA module; need one built for a cuda target with tvm_hopper"
        )
    known = [record for record in map(find, sources) if record is not None]
    if known:
        return known
    if not any(sources):
        found = "CUDA binaries without their text (loaded from a file)"
    else:
        found = f"{len(sources)} CUDA module(s) that this process did not lower with tvm_hopper"
    raise HopperError(
        f"executable: found {found}; need one that this process built from an annotated function "
        f"(the last {KEPT} builds are kept); build it here, or pass the TIR module itself"
    )


def lookup(executable: object) -> BuildRecord:
    """Return the one record of an executable; refuse a foreign one and one with several."""
    found = lookup_all(executable)
    if len(found) > 1:
        names = ", ".join(name for record in found for name in record.kernels)
        raise HopperError(
            f"executable: found {len(found)} CUDA modules of ours ({names}); need one; "
            "use tvm_hopper.capture.lookup_all"
        )
    return found[0]


def compiled(executable: object) -> Compiled:
    """Return the compiled form of the one CUDA module of ours in an executable."""
    return lookup(executable).compile()


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
        The compiler refuses a kernel, or had to fix it.
    TypeError
        It is no executable.
    """
    return compiled(executable).cubin
