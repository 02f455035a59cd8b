"""Compile CUDA text to a checked cubin, by NVRTC or nvcc.

NVRTC needs no CUDA toolkit: `nvidia-cuda-nvrtc`, `nvidia-cuda-runtime` and `nvidia-cuda-cccl` bring
the library and its headers; CUDA 12.8 and later compile our kernels.  Of the 0.8 s that TVM's text
takes, 0.6 are libcu++'s `<cuda/std/type_traits>`, of which TVM's preamble names eight traits: where
a text includes nothing else that could need the rest, a header of those eight is in for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tvm_hopper import disk_cache
from tvm_hopper.errors import CompileError
from tvm_hopper.facts.arch import DEFAULT_ARCH, Arch

from . import assembler_log, nvrtc
from .assembler_log import KernelFacts
from .toolkits import INSTALL, include_folders

KEPT = 256  # results, and records of builds; a tuning run makes thousands

# NVRTC has no cuda.h: the layout of a tensor map, and the one macro of <math.h> that TVM prints.
_PREAMBLE = """\
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
typedef struct CUtensorMap_st CUtensorMap;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
"""

_TRAITS = """\
#pragma once
namespace cuda { namespace std {
template <class T, T v> struct integral_constant { static constexpr T value = v; };
template <bool v> using bool_constant = integral_constant<bool, v>;
template <class A, class B> struct is_same : bool_constant<false> {};
template <class A> struct is_same<A, A> : bool_constant<true> {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct is_floating_point : bool_constant<false> {};
template <> struct is_floating_point<float> : bool_constant<true> {};
template <> struct is_floating_point<double> : bool_constant<true> {};
template <class T> struct is_integral : bool_constant<false> {};
#define TVM_HOPPER_INTEGRAL(T) template <> struct is_integral<T> : bool_constant<true> {};
TVM_HOPPER_INTEGRAL(bool) TVM_HOPPER_INTEGRAL(char)
TVM_HOPPER_INTEGRAL(signed char) TVM_HOPPER_INTEGRAL(unsigned char)
TVM_HOPPER_INTEGRAL(short) TVM_HOPPER_INTEGRAL(unsigned short)
TVM_HOPPER_INTEGRAL(int) TVM_HOPPER_INTEGRAL(unsigned int)
TVM_HOPPER_INTEGRAL(long) TVM_HOPPER_INTEGRAL(unsigned long)
TVM_HOPPER_INTEGRAL(long long) TVM_HOPPER_INTEGRAL(unsigned long long)
#undef TVM_HOPPER_INTEGRAL
template <class T> struct is_signed : bool_constant<(T(-1) < T(0))> {};
template <class T> struct is_unsigned : bool_constant<(T(0) < T(-1))> {};
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool, class T, class F> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
}}
"""
_NEEDED = ("cuda_fp16.h", "cuda/std/cstdint")
_KERNEL = re.compile(r"^[^/\n]*__global__\s[^;]*?{", re.MULTILINE)  # not its declaration
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# Headers that need no trait, so that the short one is enough (host branches of the text included).
_WITHOUT_TRAITS = {
    "cuda/std/cstdint",
    "cuda/std/type_traits",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "cuda_fp8.h",
    "cuda.h",
    "sm_61_intrinsics.h",
    "cstdint",
    "type_traits",
    "math_constants.h",
    "mma.h",  # left out, see below, or not compiled anyway
}
# TVM includes <mma.h> for every product on tensor cores. Inline assembly uses nothing of it, and of
# pip's packages it takes one more (nvidia-cuda-crt).
_WMMA = "nvcuda::"


class Output(NamedTuple):
    """The output of a compiler."""

    cubin: bytes
    assembly: bytes  # PTX
    log: str


def line_flags(source: str) -> list[str]:
    """Keep the lines that a text names (`source_lines.py`): in tables beside the same code."""
    return ["-lineinfo"] if "\n#line " in source else []


def math_flags(fast_math: bool) -> list[str]:
    """State the arithmetic: IEEE division and square root, denormals kept, a*b+c may be fused."""
    if fast_math:
        return ["--use_fast_math"]
    return ["--fmad=true", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"]


@lru_cache(maxsize=1)
def header_folders() -> tuple[str, ...]:
    """Find the headers of pip's CUDA packages, or those of an installed toolkit.

    PyTorch brings `cuda_fp16.h` but not libcu++, so the two are looked for one by one.
    """
    folders = include_folders(nvrtc.version()[0])
    found = [next((f for f in folders if (f / name).is_file()), None) for name in _NEEDED]
    return tuple(dict.fromkeys(map(str, found))) if None not in found else ()


def with_nvrtc(source: str, arch: str, fast_math: bool) -> Output:
    """Compile a CUDA text by NVRTC."""
    try:
        nvrtc.library()
    except ImportError as error:
        raise CompileError(f"NVRTC: found {error}; need 13.0 or later; {INSTALL}") from error
    folders = header_folders()
    if not folders:
        raise CompileError(f"NVRTC: found not both of {_NEEDED}; need CUDA's headers; {INSTALL}")
    together = _side_by_side(source)
    options = [
        f"--gpu-architecture={arch}",
        "-default-device",
        "--device-int128",
        "--ptxas-options=-v",
        "-diag-suppress=177",  # TVM declares what it may not use
        *math_flags(fast_math),
        *line_flags(source),
        *together,
        *(f"-I{folder}" for folder in folders),
    ]
    headers = {} if _WMMA in source else {"mma.h": ""}
    if set(_INCLUDE.findall(source)) <= _WITHOUT_TRAITS and "mma.h" in headers:
        headers["cuda/std/type_traits"] = _TRAITS

    def checked(result: tuple[Any, ...], what: str) -> Any:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC: {what} returned {result[0].name}; need NVRTC_SUCCESS")
        return result[1] if len(result) > 1 else None

    program = checked(
        nvrtc.nvrtcCreateProgram(
            (_PREAMBLE + source).encode(),
            b"tvm_hopper.cu",
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        ),
        "nvrtcCreateProgram",
    )
    try:
        with _printed(bool(together)) as remarks:
            (status,) = nvrtc.nvrtcCompileProgram(
                program, len(options), [o.encode() for o in options]
            )

        def output(what: str) -> bytes:
            room = bytearray(checked(getattr(nvrtc, f"{what}Size")(program), f"{what}Size"))
            checked(getattr(nvrtc, what)(program, room), what)
            return bytes(room)

        text = output("nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC: found {errors(text)}; need CUDA text that compiles")
        ptx = output("nvrtcGetPTX").rstrip(b"\0")
        return Output(output("nvrtcGetCUBIN"), ptx, "\n".join([text, *remarks]))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _side_by_side(source: str) -> list[str]:
    """Let optimiser and assembler work on several kernels at once, each as if it were alone.

    The instructions are the same, byte by byte; what NVRTC notes of the tools that it ran is not,
    and remarks of assemblers are printed instead of noted (NVRTC 13.0).
    """
    workers = min(len(_KERNEL.findall(source)), _cores())
    return [f"--split-compile={workers}"] if workers > 1 else []


_printing = threading.Lock()


@contextmanager
def _printed(expected: bool) -> Iterator[list[str]]:
    """Collect the lines that the assembler prints to the process's streams; others go on."""
    found: list[str] = []
    if not expected:
        yield found
        return
    with _printing, tempfile.TemporaryFile() as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        kept = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in kept:
                os.dup2(file.fileno(), number)
            yield found
        finally:
            (ctypes.CDLL("msvcrt") if sys.platform == "win32" else ctypes.CDLL(None)).fflush(None)
            for number, old in kept.items():
                os.dup2(old, number)
                os.close(old)
        file.seek(0)
        lines = file.read().decode(errors="replace").splitlines()
    found += [x for x in lines if x.startswith("ptxas")]
    for line in (x for x in lines if not x.startswith("ptxas")):
        print(line, file=sys.stderr)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def with_nvcc(source: str, arch: str, fast_math: bool) -> Output:
    """Compile a CUDA text by the nvcc on PATH."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise CompileError(
            "nvcc: found none on PATH; need CUDA 13.0's; install the CUDA toolkit or leave "
            'tvm_hopper.compiler at "nvrtc"'
        )
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder, "tvm_hopper.cu"), Path(folder, "tvm_hopper.cubin")
        text.write_text(source)
        command = [
            nvcc,
            "-cubin",
            "--keep",  # the PTX on the way
            f"--keep-dir={folder}",
            f"-arch={arch}",
            "-O3",
            "--ptxas-options=-v",
            "-diag-suppress=177",
        ]
        done = subprocess.run(
            [*command, *math_flags(fast_math), *line_flags(source), "-o", str(cubin), str(text)],
            capture_output=True,
            text=True,
            check=False,
        )
        log = done.stdout + done.stderr
        if done.returncode:
            raise CompileError(f"nvcc: found {errors(log)}; need CUDA text that compiles")
        return Output(cubin.read_bytes(), Path(folder, "tvm_hopper.ptx").read_bytes(), log)


def errors(log: str) -> str:
    """Return the first error lines of a compiler log."""
    lines = [line.strip() for line in log.splitlines() if re.search("error|fatal", line)]
    return " | ".join(lines[:3]) or log.strip()[-300:] or "an empty log"


@dataclass(frozen=True)
class Compiled:
    """A cubin with all that is known of how it came to be.

    `image` is what is shipped: the cubin, or for an arch whose code later chips run, its PTX.
    `fewer_blocks` are kernels that would spill where as many thread blocks share an SM as were
    requested: by name the numbers of these and of those that have the registers.
    """

    cubin: bytes = field(repr=False)
    image: bytes = field(repr=False)
    log: str = field(repr=False)
    compiler: str
    math_flags: tuple[str, ...]
    kernels: dict[str, KernelFacts]
    fewer_blocks: dict[str, tuple[int, int]] = field(default_factory=dict)


# threads of a thread block, and of how many of these share an SM at least
_BOUNDS = re.compile(r"__launch_bounds__\((\d+)(?:, (\d+))?\) (\w+)\(")
_COMPILERS = {"nvrtc": with_nvrtc, "nvcc": with_nvcc}
_lock = threading.Lock()
_results: OrderedDict[tuple[Any, ...], Compiled] = OrderedDict()


def source_hash(source: str) -> str:
    """Return the hash that names a CUDA text."""
    return hashlib.sha256(source.encode()).hexdigest()


def _compile_without_spills(
    source: str, compile_text: Callable[[str], Output], arch: Arch = DEFAULT_ARCH
) -> tuple[Output, dict[str, KernelFacts], dict[str, tuple[int, int]]]:
    """Compile a text; where a kernel spills, let fewer of its thread blocks share an SM.

    Where no number is requested, ptxas aims at one by itself, and may spill for it. What it spills
    last of all it counts as a stack frame alone. An array in local memory stays there with any
    number, and the text as it is.
    """
    bounds = {name: (int(threads), count) for threads, count, name in _BOUNDS.findall(source)}

    def compile_with(counts: dict[str, int]) -> tuple[Output, dict[str, KernelFacts], set[str]]:
        text = source
        for name, count in counts.items():
            bound = f"__launch_bounds__({bounds[name][0]}, {count}) {name}("
            text = re.sub(rf"__launch_bounds__\([\d, ]+\) {name}\(", bound, text)
        out = compile_text(text)
        facts = assembler_log.read_facts(out.log, out.assembly)
        spilled = {x.name for x in facts.values() if x.spills or x.stack_bytes}
        return out, facts, spilled & set(bounds)

    def fitting(fact: KernelFacts) -> int:
        threads, asked = bounds[fact.name]
        return int(asked or arch.registers_per_sm // (threads * max(fact.registers, 1)))

    out, facts, spilled = compile_with({})
    left = {name: count for name in spilled if (count := fitting(facts[name])) > 1}
    if left:
        never = compile_with(dict.fromkeys(left, 1))[2]
        left = {name: count for name, count in left.items() if name not in never}
    while spilled & set(left):
        left |= {name: left[name] - 1 for name in spilled & set(left)}
        out, facts, spilled = compile_with(left)
    return out, facts, {x: (int(bounds[x][1]), n) for x, n in left.items() if bounds[x][1]}


def to_bytes(result: Compiled) -> bytes:
    """Write a result as a line of JSON and its machine code."""
    plain = asdict(result)
    codes = [plain.pop("cubin"), plain.pop("image")]
    codes = codes[: 1 if codes[0] == codes[1] else 2]
    plain["sizes"] = list(map(len, codes))
    return b"\n".join([json.dumps(plain).encode(), b"".join(codes)])


def from_bytes(data: bytes | None) -> Compiled | None:
    """Read what `to_bytes` wrote, None where there is nothing to read."""
    if data is None:
        return None
    line, _, codes = data.partition(b"\n")
    plain = json.loads(line)
    size = plain.pop("sizes")[0]
    plain["math_flags"] = tuple(plain["math_flags"])
    plain["kernels"] = {name: KernelFacts(**x) for name, x in plain["kernels"].items()}
    plain["fewer_blocks"] = {name: tuple(x) for name, x in plain["fewer_blocks"].items()}
    return Compiled(cubin=codes[:size], image=codes[size:] or codes, **plain)


def _version_of(compiler: str) -> str:
    """Return what tells one compiler and its headers from another."""
    if compiler == "nvrtc":
        return f"{nvrtc.version()} {header_folders()}"
    path = Path(shutil.which("nvcc") or "nvcc")
    return f"{path} {path.stat().st_mtime_ns if path.is_file() else 0}"


def compile_source(
    source: str,
    compiler: str = "nvrtc",
    fast_math: bool = False,
    check_log: bool = True,
    strict: bool = False,
    arch: Arch = DEFAULT_ARCH,
) -> Compiled:
    """Compile a CUDA text; refuse what the assembler had to fix."""
    if compiler not in _COMPILERS:
        need = " or ".join(map(repr, _COMPILERS))
        raise CompileError(f"tvm_hopper.compiler: found {compiler!r}; need {need}")
    key = (source_hash(source), compiler, fast_math, arch.name)
    with _lock:
        result = _results.get(key)
    if result is None:
        entry = disk_cache.key_of("cubin", *map(str, key), _version_of(compiler))
        result = from_bytes(disk_cache.get(entry))
    if result is None:
        out, facts, fewer = _compile_without_spills(
            source, lambda text: _COMPILERS[compiler](text, arch.name, fast_math), arch
        )
        image = out.cubin if arch.is_specific else out.assembly
        flags = tuple(math_flags(fast_math))
        result = Compiled(out.cubin, image, out.log, compiler, flags, facts, fewer)
        disk_cache.put(entry, to_bytes(result))
    if key not in _results:
        with _lock:
            _results[key] = result
            while len(_results) > KEPT:
                _results.popitem(last=False)
    if check_log:
        assembler_log.check(result.log, result.kernels, strict)
    return result
