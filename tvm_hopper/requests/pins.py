"""Refuse versions that crash, before anything of them is called.

apache-tvm 0.27.0.post1 allows any apache-tvm-ffi from 0.1.14.post0 on, and pip picks the newest;
with 0.1.15 `save_json`, `Schedule.tensorize` and every pickled IRModule end in a segmentation
fault, which no `except` can catch.
"""

from __future__ import annotations

TVM = "0.27.0.post1"
FFI = "0.1.14"
REMEDY = f'pip install "apache-tvm=={TVM}" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"'


def check_pins() -> None:
    """Raise one ImportError that names the pip command, unless the versions are those we know."""
    import tvm_ffi
    from tvm.libinfo import __version__ as tvm_version

    found = []
    if not is_release(tvm_ffi.__version__, FFI):
        found.append(f"apache-tvm-ffi {tvm_ffi.__version__}")
    if not is_release(tvm_version, TVM):
        found.append(f"apache-tvm {tvm_version}")
    if found:
        raise ImportError(
            f"tvm_hopper: found {' and '.join(found)}; need apache-tvm {TVM} with "
            f"apache-tvm-ffi {FFI} (later ones crash with it); run: {REMEDY}"
        )


def is_release(version: str, release: str) -> bool:
    """Tell whether two versions have the same numbers: 0.1.14.post1 is of release 0.1.14."""
    if version == release or version.startswith(f"{release}.post"):
        return True  # without `packaging`, which would be a third of the time that an import takes
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).release == Version(release).release
    except InvalidVersion:
        return False
