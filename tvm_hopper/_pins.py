"""Refuse versions that crash, before anything of them is called.

apache-tvm 0.27.0.post1 allows any apache-tvm-ffi from 0.1.14.post0 on, and pip picks the newest;
with 0.1.15 `save_json`, `Schedule.tensorize` and every pickled IRModule end in a segmentation
fault, which no `except` can catch.
"""

from __future__ import annotations

TVM = "0.27.0"
FFI = (0, 1, 14)
REMEDY = 'pip install "apache-tvm==0.27.0.post1" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"'


def check_pins() -> None:
    """Raise one ImportError that names the pip command, unless the versions are those we know."""
    import tvm_ffi
    from tvm.libinfo import __version__ as tvm_version

    found = []
    if numbers(tvm_ffi.__version__)[:3] != FFI:
        found.append(f"apache-tvm-ffi {tvm_ffi.__version__}")
    if not tvm_version.startswith(TVM):
        found.append(f"apache-tvm {tvm_version}")
    if found:
        raise ImportError(
            f"tvm_hopper: found {' and '.join(found)}; need apache-tvm 0.27.0.post1 with "
            f"apache-tvm-ffi 0.1.14 (later ones crash with it); run: {REMEDY}"
        )


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: "0.1.14.post1" -> (0, 1, 14)."""
    result = []
    for part in version.split("."):
        if not part.isdigit():
            break
        result.append(int(part))
    return tuple(result)
