"""Disassemble a cubin to SASS, by CUDA's nvdisasm."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tvm_hopper.errors import HopperError

from .toolkits import pip_folders

INSTALL = "pip install nvidia-cuda-nvdisasm"


def find_disassembler() -> str | None:
    """Return the path of nvdisasm, of pip's package or else the machine's; None without one."""
    folders = os.pathsep.join(map(str, pip_folders("cu13", "bin")))
    return shutil.which("nvdisasm", path=folders) or shutil.which("nvdisasm")


def disassemble(code: bytes) -> str:
    """Return a cubin's SASS as nvdisasm prints it.

    - raises HopperError: there is no nvdisasm on this machine.
    """
    tool = find_disassembler()
    if tool is None:
        raise HopperError(f"sass: found no nvdisasm; need it to read machine code; {INSTALL}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(code)
        command = [tool, "-c", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def sass(executable: object) -> str:
    """Return the instructions of our kernels in an executable, with or without a GPU here.

    Parameters
    ----------
    executable : Executable
        What `tvm.compile` returned in this process.

    Returns
    -------
    sass : str
        What nvdisasm prints of `cubin(executable)`: an instruction a line, e.g. `UTMALDG.2D` for a
        tensor copy by the TMA unit or `LDGSTS.E.128` for `cp.async`.

    Raises
    ------
    HopperError
        There is no nvdisasm on this machine; or as `cubin` does.
    CompileError, TypeError
        As `cubin` does.
    """
    from .records import cubin  # imports TVM, next to which `doctor` has to run where it crashes

    return disassemble(cubin(executable))
