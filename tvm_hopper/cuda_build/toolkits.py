"""Find CUDA's libraries and headers: pip's packages first, then installed toolkits.

pip has two layouts, which PyTorch brings as well: `nvidia/cu13` holds all of CUDA 13, and packages
of CUDA 12 (`...-cu12`) have a folder each. Both may be installed. The major version is chosen by
the NVRTC that is loaded (`nvrtc.py`), and headers are of that version.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

MAJORS = (13, 12)  # versions of NVRTC that compile our kernels, the preferred one first

INSTALL = (
    'pip install "nvidia-cuda-nvrtc>=13.0,<14" "nvidia-cuda-runtime>=13.0,<14" '
    '"nvidia-cuda-cccl>=13.0,<14"'
)

_VERSION = re.compile(r"#define CUDART_VERSION\s+(\d+)")


def pip_folders(*parts: str) -> list[Path]:
    """Return the folders of this name in pip's CUDA packages (`nvidia` is a namespace of many)."""
    spec = importlib.util.find_spec("nvidia")
    locations = (spec.submodule_search_locations if spec else None) or []
    return [Path(location, *parts) for location in locations]


def toolkit_folders() -> list[Path]:
    """Return the roots of installed CUDA toolkits."""
    roots = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    nvcc = shutil.which("nvcc")
    if nvcc:
        roots.append(Path(nvcc).resolve().parent.parent)
    return [*roots, Path("/usr/local/cuda")]


def include_folders(major: int) -> list[Path]:
    """Return where headers of one major version of CUDA may be."""
    if major == 12:
        roots = [*pip_folders("cuda_runtime"), *pip_folders("cuda_cccl")]
    else:
        roots = pip_folders(f"cu{major}")
    roots += toolkit_folders()
    folders = [folder for root in roots for folder in (root / "include", root / "include" / "cccl")]
    return [folder for folder in folders if header_version(folder)[0] in (0, major)]


def header_version(folder: Path) -> tuple[int, int]:
    """Return the CUDA version that a folder's headers state; zeros where they state none."""
    header = next(
        (f for f in (folder, folder.parent) if (f / "cuda_runtime_api.h").is_file()), None
    )
    text = (header / "cuda_runtime_api.h").read_text(errors="replace") if header else ""
    match = _VERSION.search(text)
    number = int(match.group(1)) if match else 0
    return number // 1000, number % 1000 // 10


def nvrtc_files(major: int) -> list[str]:
    """Return what to load for NVRTC of a major version: files, then a name for the loader."""
    name, part = f"libnvrtc.so.{major}", "lib"
    if sys.platform == "win32":
        name, part = f"nvrtc64_{major}0_0.dll", "bin"
    folders = pip_folders(f"cu{major}" if major > 12 else "cuda_nvrtc", part)
    folders += [root / each for root in toolkit_folders() for each in ("lib64", part)]
    folders += [folder / "x86_64" for folder in folders]  # of Windows
    return [*(str(f / name) for f in folders if (f / name).is_file()), name]
