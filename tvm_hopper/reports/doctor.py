"""`python -m tvm_hopper doctor`: what this machine has and lacks, and how to fix it."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from tvm_hopper import disk_cache
from tvm_hopper.cuda_build import compilers, disassembler, nvrtc, runtime
from tvm_hopper.cuda_build.toolkits import INSTALL
from tvm_hopper.integration import autoload
from tvm_hopper.requests import pins

OK, MISSING, OPTIONAL = "ok", "missing", "optional"
_INSTALL_SELF = "pip install . (in a checkout of tvm_hopper)"
_DRIVER = "install an NVIDIA driver for CUDA 13 (580 or later); only running kernels needs it"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    state: str  # OK, MISSING, or OPTIONAL: missing, but not needed to schedule, lower and simulate
    found: str
    remedy: str = ""


def _row(what: str, good: bool, found: str, remedy: str, optional: bool = False) -> Row:
    if good:
        return Row(what, OK, found)
    return Row(what, OPTIONAL if optional else MISSING, found, remedy)


def check_python() -> Row:
    """Check the interpreter's version."""
    version = platform.python_version()
    good = (3, 10) <= sys.version_info[:2] <= (3, 13)
    return _row("Python", good, version, "use Python 3.10 to 3.13")


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def check_tvm() -> Row:
    """Check apache-tvm's version."""
    version = _installed("apache-tvm")
    return _row("apache-tvm", version == pins.TVM, version, pins.REMEDY)


def check_ffi() -> Row:
    """Check apache-tvm-ffi's version: with later ones some calls crash."""
    version = _installed("apache-tvm-ffi")
    good = pins.is_release(version, pins.FFI)
    partly = pins.is_release(version, pins.PARTLY_USABLE_FFI)
    return _row("apache-tvm-ffi", good, version, pins.REMEDY, optional=partly)


def check_entry_point() -> Row:
    """Check that `import tvm` alone, also in tuning workers, loads this package."""
    points = importlib.metadata.entry_points(group="tvm.backends")
    good = any(point.name == "tvm_hopper" for point in points)
    return _row("entry point", good, "installed" if good else "not installed", _INSTALL_SELF, True)


def check_gate() -> Row:
    """Check that TVM's default pipeline sends our functions to ours."""
    what = "gate in the default pipeline"
    try:
        autoload.register()
    except ImportError as error:  # versions that crash, or no TVM at all
        return Row(what, MISSING, str(error).split("; need")[0], pins.REMEDY)
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP

    good = hasattr(PIPELINE_MAP["s_tir"], "gate_of")
    off = os.environ.get("TVM_HOPPER_AUTOLOAD") == "0"
    return _row(
        what,
        good,
        "in place" if good else "absent" + (" (TVM_HOPPER_AUTOLOAD=0)" if off else ""),
        "unset TVM_HOPPER_AUTOLOAD, or import tvm_hopper before building",
    )


def check_config_keys() -> Row:
    """Check that PassContext knows our options."""
    from tvm.ir.transform import PassContext

    good = hasattr(PassContext.__init__, "gate_of")
    return _row(
        "PassContext keys",
        good,
        "taken, typed" if good else "not taken",
        "import tvm_hopper before making the PassContext",
    )


def check_nvrtc() -> Row:
    """Check NVRTC, which compiles kernels."""
    remedy = INSTALL if sys.platform != "darwin" else "compile on Linux or Windows"
    try:
        nvrtc.library()
    except ImportError as error:
        return Row("NVRTC", MISSING, str(error), remedy)
    version = nvrtc.version()
    found = f"{version[0]}.{version[1]}"
    driver = _driver_version()
    if driver and driver < version:
        need = f'pip install "nvidia-cuda-nvrtc=={driver[0]}.{driver[1]}.*"'
        found += ", newer than the driver: which runs kernels for sm_90a, but not PTX for sm_80"
        return Row("NVRTC", OPTIONAL, found, need)
    return _row("NVRTC", version >= (12, 8), found, remedy)


def check_headers() -> Row:
    """Check CUDA's headers, which TVM's generated text includes."""
    folders = compilers.header_folders()
    return _row("CUDA headers", bool(folders), folders[0] if folders else "none", INSTALL)


def check_nvcc() -> Row:
    """Check nvcc, which `tvm_hopper.compiler="nvcc"` requests."""
    path = shutil.which("nvcc")
    if path is None:
        return Row("nvcc", OPTIONAL, "none", "install the CUDA 13.0 toolkit; NVRTC is enough")
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    release = next((part for part in text.split(",") if "release" in part), "").strip()
    return _row("nvcc", "13." in release, release or path, "install the CUDA 13.0 toolkit", True)


def check_disassembler() -> Row:
    """Check nvdisasm, which shows the instructions of a kernel."""
    path = disassembler.find_disassembler()
    return _row("nvdisasm", path is not None, path or "none", disassembler.INSTALL, True)


def check_cache() -> Row:
    """Check that builds can be kept on disk."""
    found, good = disk_cache.state()
    fix = f"make the folder writable, or name another one by {disk_cache.FOLDER}"
    return _row("cache of builds", good, found, fix, optional=True)


def check_cudart() -> Row:
    """Check libcudart.so.13, which TVM's CUDA runtime links."""
    if runtime.loadable(runtime.CUDART):
        return Row("libcudart.so.13", OK, "found by the loader")
    path = runtime.pip_library(runtime.CUDART)
    return _row(
        "libcudart.so.13",
        path is not None,
        str(path or "none"),
        'pip install "nvidia-cuda-runtime>=13.0,<14"',
        optional=True,
    )


def _driver_version() -> tuple[int, int] | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    return number.value // 1000, number.value % 1000 // 10


def check_driver() -> Row:
    """Check the driver's version."""
    version = _driver_version()
    if version is None:
        return Row("NVIDIA driver", OPTIONAL, "none", _DRIVER)
    found = f"CUDA {version[0]}.{version[1]}"
    return _row("NVIDIA driver", version >= (13, 0), found, _DRIVER, True)


def check_gpu() -> Row:
    """Check for a GPU of compute capability 9.0 that TVM can use."""
    remedy = "kernels run on H100, H200, H800 or GH200; simulate() needs none"
    if not runtime.ensure():
        return Row("Hopper GPU", OPTIONAL, "TVM's CUDA runtime is not loaded", remedy)
    import tvm

    device = tvm.cuda(0)
    if not device.exist:
        return Row("Hopper GPU", OPTIONAL, "none", remedy)
    found = f"{device.device_name}, compute capability {device.compute_version}"
    return _row("Hopper GPU", device.compute_version == "9.0", found, remedy, True)


def check_extras() -> Row:
    """Check what tuning needs in TVM's worker pools."""
    missing = [m for m in ("cloudpickle", "psutil", "tornado") if not importlib.util.find_spec(m)]
    found = "complete" if not missing else f"without {', '.join(missing)}"
    return _row("tuning", not missing, found, f"pip install {' '.join(missing)}", True)


CHECKS: tuple[Callable[[], Row], ...] = (
    check_python,
    check_tvm,
    check_ffi,
    check_entry_point,
    check_gate,
    check_config_keys,
    check_nvrtc,
    check_headers,
    check_nvcc,
    check_disassembler,
    check_cache,
    check_cudart,
    check_driver,
    check_gpu,
    check_extras,
)


def rows() -> Iterator[Row]:
    """Run every check."""
    return (check() for check in CHECKS)


def doctor_command(arguments: argparse.Namespace) -> int:
    """Print a table or JSON, or write a report; exit code 1 if something needed is missing."""
    found = list(rows())
    if arguments.report:
        from .bug_report import write_report

        write_report(arguments.report, [(row.what, row.state, row.found) for row in found])
        print(f"wrote {arguments.report}: attach it to your bug report")
    elif arguments.json:
        print(json.dumps([asdict(row) for row in found], indent=1))
    else:
        _print_table(found)
    return int(any(row.state == MISSING for row in found))


def _print_table(found: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {OK: "green", MISSING: "red", OPTIONAL: "yellow"}
    table = Table()
    for name in ("what", "state", "found", "what fixes it"):
        table.add_column(name, overflow="fold")  # a path must stay whole, to be copied
    for row in found:
        state = f"[{colours[row.state]}]{row.state}[/]"
        table.add_row(row.what, state, escape(row.found), escape(row.remedy))
    console = Console()
    console.print(table)
    missing = [row.what for row in found if row.state == MISSING]
    if missing:
        console.print(f"[red]missing:[/] {', '.join(missing)}")
    elif any(row.what == "Hopper GPU" and row.state == OK for row in found):
        console.print("ready to schedule, lower, simulate, compile and run")
    else:
        console.print("ready to schedule, lower, simulate and compile; no GPU here to run on")
