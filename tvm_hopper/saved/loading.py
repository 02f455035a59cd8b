"""Open a saved file, without TVM's compiler: this module imports no TVM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm_ffi

from tvm_hopper.cuda_build import runtime
from tvm_hopper.errors import HopperError

from . import container
from .container import Header

CHECK = "tvm_hopper_check"
CUDA, CPU, POOLED = 2, 1, 2  # devices and allocator, as TVM's virtual machine takes them


@dataclass(frozen=True)
class Saved:
    """A saved file that is open: `saved["name"]` is one of its functions.

    Attributes
    ----------
    module
        The functions; of a model, the virtual machine on the device that it was opened for.
    header
        What the file says of itself.
    """

    module: tvm_ffi.Module
    header: Header

    @property
    def report(self) -> str:
        """The text of `explain` at save, or a model's records as JSON."""
        return self.header.report

    def __getitem__(self, name: str) -> Any:
        """Return a function; it takes tensors by DLPack, without a copy.

        - raises HopperError: there is none of this name.
        """
        try:
            return self.module.get_function(name)
        except AttributeError:
            known = ", ".join(self.header.functions)
            raise HopperError(f"saved file: found no function {name!r}; need {known}") from None


def read_header(path: str | Path) -> Header:
    """Return what a saved file says of itself; needs no GPU and runs nothing of it.

    Parameters
    ----------
    path : str or Path
        What `tvm_hopper.save` wrote.

    Returns
    -------
    header : Header
        Kind, chip, functions, kernels, versions and report.

    Raises
    ------
    HopperError
        There is no such file, it is damaged, or another format.
    """
    return container.read(Path(path))


def load(path: str | Path, device: int = 0) -> Saved:
    """Open what `save` wrote, and check that its code runs on a device.

    The process needs tvm-ffi, TVM's runtime libraries and the CUDA driver, and no compiler. A
    saved file is code and runs with the rights of this process: load those that you trust.

    Parameters
    ----------
    path : str or Path
        What `tvm_hopper.save` wrote.
    device : int
        The CUDA device to check, on which a model is opened.

    Returns
    -------
    saved : Saved
        Its functions by name, and its report.

    Raises
    ------
    HopperError
        There is no such file, it is damaged or of another format, it holds code for another chip,
        or there is no CUDA driver.
    """
    path = Path(path)
    header = container.read(path)
    if not runtime.ensure_alone():
        raise HopperError(
            f"saved file {path}: found no CUDA driver, no CUDA 13 runtime, or no libtvm_runtime.so "
            "of apache-tvm; need all to load it; `python -m tvm_hopper doctor` says which is "
            "missing; tvm_hopper.read_header reads what it says of itself without them"
        )
    try:
        # By the loader of libraries, whatever the file is called.
        module = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(str(path.resolve()), "so")
        module.get_function(CHECK, query_imports=True)(device)  # a model imports it
        if header.kind == "model":
            module = module.get_function("vm_load_executable")()
            module.get_function("vm_initialization")(CUDA, device, POOLED, CPU, 0, POOLED)
    except (RuntimeError, AttributeError) as error:
        raise HopperError(f"saved file {path}: {error}") from error
    return Saved(module, header)
