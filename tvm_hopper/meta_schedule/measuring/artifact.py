"""Artifacts: a built function as files that run without a compiler.

    manifest.json    what it is: arguments, kernels, versions, digests of the other files
    host.ll          the host function, as LLVM's text; TVM's runtime compiles it in memory
    device.cubin     machine code of its kernels, if it has any

Nothing in a manifest is executed. Host code and machine code are what their digests say, but both
run with the rights of who loads them: load what you or your builder has made.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tvm_hopper.errors import HopperError

VERSION = 1
MANIFEST, HOST, DEVICE = "manifest.json", "host.ll", "device.cubin"


@dataclass(frozen=True)
class TensorArgument:
    """A tensor that the function takes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_written: bool


@dataclass(frozen=True)
class Manifest:
    """The manifest of an artifact.

    - `entry`: name of the host function.
    - `arguments`: in its order.
    - `kernels`: what TVM's runtime has to know of each kernel to launch it, by name.
    - `target`: what it was built for, as TVM's JSON.
    - `versions`: of the packages that built it.
    - `digests`: SHA-256 of each other file.
    - `predicted_seconds`: by the written model; what fake devices report.
    """

    entry: str
    arguments: tuple[TensorArgument, ...]
    kernels: dict[str, dict[str, Any]]
    target: dict[str, Any]
    versions: dict[str, str]
    digests: dict[str, str]
    predicted_seconds: float = 0.0
    version: int = VERSION
    built: dict[str, float] = field(default_factory=dict)  # seconds that steps of the build took


def folder_of(path: str | Path) -> Path:
    """Return the folder of an artifact, by it or by its manifest."""
    path = Path(path)
    return path.parent if path.name == MANIFEST else path


def write(folder: Path, manifest: Manifest, files: Mapping[str, bytes]) -> Path:
    """Write an artifact; the manifest comes last, so that what has one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    path = folder / MANIFEST
    path.write_text(json.dumps(asdict(manifest), indent=1))
    return path


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def read_files(path: str | Path) -> dict[str, bytes]:
    """Return the files of an artifact by name; refuse one that is not whole."""
    folder = folder_of(path)
    try:
        files = {MANIFEST: (folder / MANIFEST).read_bytes()}
        names = parse(files[MANIFEST]).digests
        files |= {name: (folder / name).read_bytes() for name in names}
    except OSError as error:
        raise _broken(str(folder), f"{error.strerror or error}: {error.filename}") from None
    check(str(folder), files)
    return files


def check(where: str, files: Mapping[str, bytes]) -> Manifest:
    """Compare files with their manifest; return it."""
    manifest = parse(files[MANIFEST])
    for name, expected in manifest.digests.items():
        if name not in files or digest(files[name]) != expected:
            raise _broken(where, f"another {name} than its manifest says")
    return manifest


def parse(data: bytes) -> Manifest:
    """Read a manifest; refuse one of another version, and values of other types."""
    try:
        plain = json.loads(data)
        if plain["version"] != VERSION:
            raise _broken(MANIFEST, f"version {plain['version']!r}; this is {VERSION}")
        arguments = tuple(
            TensorArgument(
                _as(str, x["name"]),
                tuple(_as(int, extent) for extent in x["shape"]),
                _as(str, x["dtype"]),
                _as(bool, x["is_written"]),
            )
            for x in plain["arguments"]
        )
        digests = {name: _as(str, plain["digests"][name]) for name in plain["digests"]}
        if set(digests) - {HOST, DEVICE}:  # never a path out of the folder
            raise _broken(MANIFEST, f"files {sorted(digests)}")
        return Manifest(
            entry=_as(str, plain["entry"]),
            arguments=arguments,
            kernels=_as(dict, plain["kernels"]),
            target=_as(dict, plain["target"]),
            versions=_as(dict, plain["versions"]),
            digests=digests,
            predicted_seconds=float(plain["predicted_seconds"]),
            built=_as(dict, plain["built"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(MANIFEST, f"{type(error).__name__}: {error}") from None


def remove(path: str | Path) -> None:
    """Remove the files of an artifact; the folder stays, since TVM's callback expects one."""
    for name in (MANIFEST, HOST, DEVICE):
        (folder_of(path) / name).unlink(missing_ok=True)


def load_checked(path: str | Path) -> tuple[Callable[..., Any], Manifest]:
    """Load copies of the checked files: others may write to the artifact's folder."""
    files = read_files(path)
    manifest = parse(files[MANIFEST])
    with tempfile.TemporaryDirectory() as folder:
        for name in manifest.digests:
            Path(folder, name).write_bytes(files[name])
        return load(Path(folder), manifest), manifest


def load(folder: Path, manifest: Manifest) -> Callable[..., Any]:
    """Return the host function, with its kernels after it.

    - `folder`: where the files lie.
    - `manifest`: as `check` returned it.
    - raises HopperError: there are kernels, and this process cannot have TVM's CUDA runtime.
    """
    import tvm
    import tvm_ffi

    module = tvm.runtime.load_module(str(folder / HOST))
    if DEVICE in manifest.digests:
        from tvm_hopper.cuda_build import runtime

        if not runtime.ensure():
            raise HopperError(
                "artifact with kernels: found no CUDA driver or no CUDA 13 runtime; need both "
                "where it is measured; `python -m tvm_hopper doctor` says which"
            )
        described = {"tvm_version": manifest.versions.get("apache-tvm", "")}
        described["func_info"] = manifest.kernels  # type: ignore[assignment]
        functions = tvm_ffi.get_global_func("runtime.LoadMetaDataFromJSON")(json.dumps(described))
        create = tvm_ffi.get_global_func("ffi.Module.create.cuda")
        module.import_module(create((folder / DEVICE).read_bytes(), "cubin", functions, {}))
    return module[manifest.entry]


def _as(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"found {value!r}, need a {kind.__name__}")
    return value


def _broken(where: str, found: str) -> HopperError:
    return HopperError(f"artifact {where}: found {found}; need one that our builder wrote")
