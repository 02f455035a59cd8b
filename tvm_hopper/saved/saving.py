"""Save an executable with its machine code as one file.

TVM packs the modules that launch code imports as bytes: for CUDA a format, what each kernel is
launched with, and the code. Where TVM has no CUDA runtime that code is text, which would be
compiled where the file is loaded. Here the machine code takes its place.
"""

from __future__ import annotations

import importlib
import json
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from tvm_hopper.cuda_build import records
from tvm_hopper.errors import HopperError
from tvm_hopper.facts.arch import Arch
from tvm_hopper.reports.explanation import explain

from . import container
from .container import Header

SOURCE = Path(__file__).with_name("library.c")
PACK = "runtime.ModulePackImportsToTensor"
COMPILE = "tvm_callback_cuda_compile"
TEXT, CUBIN, PTX = b"cuda", b"cubin", b"ptx"
PACKAGES = ("tvm_hopper", "tvm", "tvm_ffi")


def save(executable: Any, path: str | Path) -> Path:
    """Write an executable to one file, which runs without a compiler.

    The file holds machine code for the chip of its target, launch code for this machine's CPU, and
    a report. It is a shared library: `tvm_hopper.load` opens it in Python, and
    `tvm::ffi::Module::LoadFromFile` in C++, where the name has to end in `.so`.

    Parameters
    ----------
    executable : Executable
        What `tvm.compile` or `relax.build` returned in this process, with or without a GPU here.
    path : str or Path
        The file to write. A file of that name is replaced at once.

    Returns
    -------
    path : Path
        The file.

    Raises
    ------
    HopperError
        It holds no kernels of ours, or kernels for several chips; there is no C compiler to link
        with; or the file cannot be written.
    CompileError
        The compiler refuses a kernel.
    TypeError
        It is no executable.
    """
    path = Path(path)
    known = records.lookup_all(executable)
    archs = {record.arch for record in known}
    if len(archs) > 1:
        names = ", ".join(sorted(x.name for x in archs))
        raise HopperError(f"save {path}: found kernels for {names}; need those of one chip")
    (arch,) = archs
    module = executable if isinstance(executable, tvm.runtime.Module) else executable.mod
    header = _header(module, known, arch)
    try:
        with tempfile.TemporaryDirectory() as folder:
            library = _link(module, arch, path.name, Path(folder))
        container.write(path, library, header)
    except OSError as error:
        raise HopperError(
            f"save {path}: found no place to write at ({error.strerror or error}); need a path in "
            "a folder with room"
        ) from error
    return path


def _header(module: Any, known: list[records.BuildRecord], arch: Arch) -> Header:
    is_model = module.kind == "relax.VMExecutable"
    built = [record.compile() for record in known]
    versions = {x: str(importlib.import_module(x).__version__) for x in PACKAGES}
    if is_model:
        from tvm_hopper.relax import report

        said = report(module)
        text = json.dumps(said.as_dict())
        names = {call.caller for record in said.functions for call in record.calls}
    else:
        text = str(explain(module))
        names = {gv.name_hint for record in known for gv in record.host.functions}
        names = {name for name in names if module.implements_function(name)}
    return Header(
        kind="model" if is_model else "kernels",
        arch=arch.name,
        compute_capability="{}.{}".format(*arch.compute_capability),
        is_specific=arch.is_specific,
        functions=sorted(names),
        kernels={name: x.registers for one in built for name, x in one.kernels.items()},
        versions=versions,
        report=text,
    )


def _link(module: Any, arch: Arch, name: str, folder: Path) -> bytes:
    """Return the library: TVM's object files, the modules that they import, and our check."""
    from tvm.support import cc

    compiler = cc.get_cc()
    if compiler is None:
        raise HopperError(
            f"save {name}: found no C compiler on PATH; need one to link the launch code; install "
            "g++ or clang, or name one by the environment variable CXX"
        )

    def pack(_: Any, __: bool, ___: str, ____: str) -> str:
        modules = folder / "modules.bin"
        packed = tvm_ffi.get_global_func(PACK)(module).numpy().tobytes()
        modules.write_bytes(with_machine_code(packed, _compiled(module, arch)))
        return str(_our_object(compiler, modules, arch, name))

    file = folder / "library.so"
    module.export_library(str(file), fpack_imports=pack, workspace_dir=str(folder), cc=compiler)
    return file.read_bytes()


def _our_object(compiler: str, modules: Path, arch: Arch, name: str) -> Path:
    """Compile `library.c` with the facts of one file."""
    major, minor = arch.compute_capability
    facts = {
        "MODULES": json.dumps(str(modules)),
        "NAME": json.dumps(re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)),
        "ARCH": json.dumps(arch.name),
        "CAPABILITY": 10 * major + minor,
        "IS_SPECIFIC": int(arch.is_specific),
    }
    lines = [f"#define {key} {value}" for key, value in facts.items()]
    text, built = modules.with_name("check.c"), modules.with_name("check.o")
    text.write_text("\n".join([*lines, SOURCE.read_text()]))
    includes = (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())
    command = [compiler, "-O1", "-fPIC", *(f"-I{x}" for x in includes), "-c", str(text)]
    done = subprocess.run([*command, "-o", str(built)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HopperError(f"save {name}: found {done.stderr.strip()[-300:]!r} of {compiler}")
    return built


def _compiled(module: Any, arch: Arch) -> Callable[[str], bytes]:
    """Return what compiles each CUDA text in a module: ours as their builds asked, TVM's as TVM."""

    def compile_text(text: str) -> bytes:
        record = records.find(text)
        if record is not None:
            return record.compile().image
        with tvm.target.Target({"kind": "cuda", "arch": arch.name}):
            return bytes(tvm_ffi.get_global_func(COMPILE)(text))

    return compile_text


def with_machine_code(packed: bytes, compile_text: Callable[[str], bytes]) -> bytes:
    """Replace the CUDA text of packed modules by its machine code; what has some stays.

    Packed are the size of all that follows, two arrays that say which module imports which, and
    for each module its kind and, but for the library itself, its bytes. Numbers have 8 bytes.
    """
    at = 8
    for _ in range(2):
        at += 8 + 8 * _number(packed, at)
    parts = [packed[8:at]]
    while at < len(packed):
        kind, at = _string(packed, at)
        parts.append(_packed(kind))
        if kind != b"_lib":
            data, at = _string(packed, at)
            parts.append(_packed(_replaced(data, compile_text) if kind == b"cuda" else data))
    return _packed(b"".join(parts))


def _replaced(data: bytes, compile_text: Callable[[str], bytes]) -> bytes:
    kind, start = _string(data, 0)
    if kind != TEXT:
        return data
    end = _end_of_kernels(data, start)
    text, _ = _string(data, end)
    image = compile_text(text.decode())
    return (
        _packed(CUBIN if image.startswith(b"\x7fELF") else PTX) + data[start:end] + _packed(image)
    )


def _end_of_kernels(data: bytes, start: int) -> int:
    """Return where the kernels' launch facts end: the text behind them takes up the rest.

    - raises HopperError: no text does; another version of TVM packed this.
    """
    for end in range(start, len(data) - 8):
        if _number(data, end) == len(data) - end - 8:
            return end
    raise HopperError("save: found CUDA code packed in an unknown way; need that of TVM 0.27")


def _number(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<Q", data, at)[0])


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 8 + _number(data, at)
    return data[at + 8 : end], end


def _packed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data
