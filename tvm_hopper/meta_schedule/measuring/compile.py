"""Builder's worker: compile a scheduled module to an artifact.

TVM leaves kernels as CUDA text where it has no CUDA runtime, and compiles them where it has one.
Here it hands them over in both cases (its factory of CUDA modules is a global function), and they
are compiled by our own step: machine code with a checked log, which needs no compiler to be run.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock

from tvm_hopper import ir
from tvm_hopper.cuda_build import compilers, records
from tvm_hopper.errors import CompileError, HopperError
from tvm_hopper.integration import autoload

from . import artifact
from .predict import predicted_seconds

CREATE = "ffi.Module.create.cuda"
PACKAGES = ("tvm_hopper", "apache-tvm", "apache-tvm-ffi", "nvidia-cuda-nvrtc")


def answerer(_settings: dict[str, Any]) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], Any]:
    """Return what builds one module a request."""
    autoload.register()
    taken = _take_device_code()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        mod = ir.load_saved(request["mod"])
        target = tvm.target.Target(json.loads(request["target"]))
        taken.clear()
        path = build_artifact(mod, target, Path(request["folder"]), taken)
        return {"artifact": str(path)}

    return answer, {}


Taken = list[tuple[str, str, dict[str, dict[str, Any]]]]  # text or PTX, its format, launch data


def _take_device_code() -> Taken:
    """Have TVM hand CUDA modules over instead of compiling them; for this process alone."""
    taken: Taken = []
    stand_in = tvm_ffi.get_global_func("runtime.SourceModuleCreate")

    @tvm_ffi.register_global_func(CREATE, override=True)
    def take(code: Any, kind: str, functions: Any, _source: Any) -> Any:
        launched = {
            str(name): {
                "name": str(info.name),
                "arg_types": [str(x) for x in info.arg_types],
                "launch_param_tags": [str(x) for x in info.launch_param_tags],
                "arg_extra_tags": [int(x) for x in info.arg_extra_tags],
            }
            for name, info in functions.items()
        }
        taken.append((bytes(code).decode(), str(kind), launched))
        return stand_in("", "cuda")

    return taken


def build_artifact(
    mod: tvm.IRModule, target: tvm.target.Target, folder: Path, taken: Taken
) -> Path:
    """Compile a module, write its artifact into a new folder; return the path of the manifest."""
    entry, func = _entry(mod)
    arguments = arguments_of(func)
    begin, cpu = time.perf_counter(), time.process_time()
    executable = tvm.compile(mod, target=target)
    compiled = time.perf_counter()
    if len(taken) > 1:
        raise HopperError(f"{entry}: found {len(taken)} CUDA modules; need one, for one target")
    files, kernels, record = {}, {}, None
    for text, kind, functions in taken:
        record = records.find(text)
        files[artifact.DEVICE] = _machine_code(text, kind, target)
        kernels = functions
    assembled = time.perf_counter()
    place = Path(tempfile.mkdtemp(dir=folder, prefix="trial_"))
    files[artifact.HOST] = executable.mod.inspect_source("ll").encode()
    manifest = artifact.Manifest(
        entry=entry,
        arguments=arguments,
        kernels=kernels,
        target=json.loads(str(target)),
        versions=_versions(),
        digests={name: artifact.digest(data) for name, data in files.items()},
        predicted_seconds=predicted_seconds(record.host if record else None, arguments),
        built={
            "compile": compiled - begin,
            "assemble": assembled - compiled,
            "cpu": time.process_time() - cpu,
        },
    )
    try:
        return artifact.write(place, manifest, files)
    except OSError:  # a full disk: what is there of it is of no use
        shutil.rmtree(place, ignore_errors=True)
        raise


def _machine_code(text: str, kind: str, target: tvm.target.Target) -> bytes:
    if kind != "cuda":
        raise CompileError(f"device code: found {kind!r}; need CUDA text")
    record = records.find(text)
    if record is not None:
        return record.compile().cubin
    # Foreign kernels, as TVM's own callback compiles them.
    return compilers.with_nvrtc(text, str(target.arch), fast_math=True).cubin


def _entry(mod: tvm.IRModule) -> tuple[str, tirx.PrimFunc]:
    functions = {
        gv.name_hint: func for gv, func in mod.functions.items() if isinstance(func, tirx.PrimFunc)
    }
    if "main" in functions:
        return "main", functions["main"]
    if len(functions) != 1:
        raise HopperError(
            f"module: found functions {sorted(functions)}; need one, or one named main"
        )
    return next(iter(functions.items()))


def arguments_of(func: tirx.PrimFunc) -> tuple[artifact.TensorArgument, ...]:
    """Return the tensors that a function takes, and which of them it writes."""
    written = [region.source for block in ir.find_all(func.body, SBlock) for region in block.writes]
    written += [store.buffer for store in ir.find_all(func.body, tirx.BufferStore)]
    arguments = []
    for param in func.params:
        shape = getattr(param.ty, "shape", None)
        if shape is None:
            raise HopperError(f"{param.name}: found no tensor; need tensors as all arguments")
        extents = tuple(int(x) for x in shape if isinstance(x, (int, tirx.IntImm)))
        if len(extents) < len(shape):
            raise HopperError(
                f"{param.name}: found the shape {list(shape)}; need static extents to measure "
                "with: tune a size at a time"
            )
        is_written = any(buffer.same_as(param) for buffer in written)
        dtype = str(getattr(param.ty.dtype, "dtype", param.ty.dtype))
        arguments.append(artifact.TensorArgument(str(param.name), extents, dtype, is_written))
    return tuple(arguments)


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
