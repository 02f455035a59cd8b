"""Refuse unsupported versions of TVM, and calls that crash with some of them.

apache-tvm 0.27.0.post1 allows any apache-tvm-ffi from 0.1.14.post0 on. With 0.1.15 some calls end
in a segmentation fault, which no `except` can catch: `tvm.ir.save_json`, `Schedule.tensorize`, and
pickle and `copy.deepcopy` of a node. All else works: that version gets a warning, and these calls
an error. Tensorizing inside of TVM's own tuning is C++ and stays as it is.
"""

from __future__ import annotations

import sys
import warnings
from importlib import metadata
from typing import Any

TVM = "0.27.0.post1"
FFI = "0.1.14"
PARTLY_USABLE_FFI = "0.1.15"
REMEDY = f'pip install "apache-tvm=={TVM}" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"'


def check_pins() -> None:
    """Raise one ImportError that names the pip command, unless the versions are those we know."""
    import tvm_ffi

    ffi = tvm_ffi.__version__
    known = is_release(ffi, FFI)
    partly = not known and is_release(ffi, PARTLY_USABLE_FFI)
    tvm_version = _version_of_tvm(is_needed=not known)
    wrong = []
    if not known and not partly:
        wrong.append(f"apache-tvm-ffi {ffi}")
    if not is_release(tvm_version, TVM):
        wrong.append(f"apache-tvm {tvm_version}")
    if wrong:
        raise ImportError(
            f"tvm_hopper: found {' and '.join(wrong)}; need apache-tvm {TVM} with "
            f"apache-tvm-ffi {FFI} (later ones crash with it); run: {REMEDY}"
        )
    if partly:
        _refuse_calls_that_crash(ffi)


def _version_of_tvm(is_needed: bool) -> str:
    """Return TVM's version; without an import of TVM, where its package tells and all is well."""
    if "tvm" not in sys.modules and not is_needed:
        try:
            return metadata.version("apache-tvm")
        except metadata.PackageNotFoundError:  # a build of its source
            pass
    from tvm.libinfo import __version__

    return str(__version__)


def _refuse_calls_that_crash(ffi: str) -> None:
    from tvm.ir import base

    if hasattr(base.to_json_graph_str, "call"):  # done before
        return
    warnings.warn(
        f"tvm_hopper: found apache-tvm-ffi {ffi}, with which TVM cannot save, pickle or tensorize; "
        f"run: {REMEDY}",
        RuntimeWarning,
        stacklevel=3,
    )

    def refusal(call: str) -> Any:
        def refuse(*_: Any, **__: Any) -> Any:
            from tvm_hopper.errors import HopperError

            raise HopperError(
                f"{call}: found apache-tvm-ffi {ffi}, with which it ends in a segmentation fault; "
                f"need {FFI}; run: {REMEDY}"
            )

        refuse.call = call  # type: ignore[attr-defined]
        return refuse

    base.to_json_graph_str = refusal("tvm.ir.save_json")
    base.Node.__reduce__ = refusal("pickle or deepcopy of a TVM object")
    if not _is_runtime_only():
        from tvm.s_tir import Schedule

        Schedule.tensorize = refusal("Schedule.tensorize")


def _is_runtime_only() -> bool:
    from tvm.base import _RUNTIME_ONLY

    return bool(_RUNTIME_ONLY)


def is_release(version: str, release: str) -> bool:
    """Tell whether two versions have the same numbers: 0.1.14.post1 is of release 0.1.14."""
    if version == release or version.startswith(f"{release}.post"):
        return True  # without `packaging`, which would be a third of the time that an import takes
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).release == Version(release).release
    except InvalidVersion:
        return False
