"""Error classes; each message says where, what was found, what is needed and how to fix it.

TVM's FFI turns unregistered exception classes into `RuntimeError`. So each class is registered, and
takes a single message, from which FFI rebuilds it. So are Python's KeyboardInterrupt and
SystemExit: else Ctrl-C in a pass would be an error that callers recover from.
"""

import importlib.util
import warnings
from collections.abc import Sequence

import tvm_ffi

for _class in (KeyboardInterrupt, SystemExit):
    tvm_ffi.register_error(_class.__name__, _class)


@tvm_ffi.register_error("tvm_hopper.HopperError")
class HopperError(RuntimeError):
    """Base of all errors of this package."""


@tvm_ffi.register_error("tvm_hopper.LoweringError")
class LoweringError(HopperError):
    """A pass cannot lower an annotation or a statement of a PrimFunc."""


@tvm_ffi.register_error("tvm_hopper.ScheduleError")
class ScheduleError(HopperError):
    """A schedule helper does not support the given block, loop or configuration."""


@tvm_ffi.register_error("tvm_hopper.OptionError")
class OptionError(HopperError, AttributeError):
    """A PassContext has an unknown `tvm_hopper.*` key, or an illegal value.

    It is also an AttributeError, which TVM raises for its own keys.
    """


@tvm_ffi.register_error("tvm_hopper.CompileError")
class CompileError(HopperError):
    """The CUDA compiler failed, or reported serialised WGMMA or spills."""


@tvm_ffi.register_error("tvm_hopper.VerifyError")
class VerifyError(HopperError):
    """A check of a lowered kernel found a broken synchronisation rule."""


@tvm_ffi.register_error("tvm_hopper.TuningError")
class TuningError(HopperError):
    """A tuning run or its records are invalid."""


@tvm_ffi.register_error("tvm_hopper.HopperWarning")
class HopperWarning(UserWarning):
    """Category of all warnings of this package."""


_warned = 0


def num_warnings() -> int:
    """Return how many warnings of this package there were in this process."""
    return _warned


def warn(text: str, stacklevel: int = 1) -> None:
    """Warn about unexpected behaviour of a build."""
    global _warned
    _warned += 1
    warnings.warn(text, HopperWarning, stacklevel=stacklevel + 1)


def require_packages(where: str, *packages: str) -> None:
    """Raise an error if optional packages are missing, with the command that installs them.

    Raises
    ------
    HopperError
        One of them cannot be found; each is named as pip and Python name it.
    """
    missing = [x for x in packages if importlib.util.find_spec(x) is None]
    if missing:
        names = " ".join(missing)
        raise HopperError(
            _message(
                where, f"no {' and no '.join(missing)}", "it installed", f"pip install {names}"
            )
        )


def _message(where: str, found: str, need: str, fix: str) -> str:
    return f"{where}: found {found}; need {need}" + (f"; {fix}" if fix else "")


def found_and_need(broken: Sequence[str]) -> tuple[str, str]:
    """Join rules of the form "found ...; need ..." into one of each."""
    parts = [text.removeprefix("found ").split("; need ", 1) for text in broken]
    return " and ".join(p[0] for p in parts), " and ".join(p[1] for p in parts)


def cannot_lower(where: str, found: str, need: str, fix: str = "") -> LoweringError:
    """Build the error of a pass: where, found, need, fix."""
    return LoweringError(_message(where, found, need, fix))


def cannot_schedule(where: str, found: str, need: str, fix: str = "") -> ScheduleError:
    """Build the error of a schedule helper: where, found, need, fix."""
    return ScheduleError(_message(where, found, need, fix))


def cannot_configure(where: str, found: str, need: str, fix: str = "") -> OptionError:
    """Build the error of a PassContext option: where, found, need, fix."""
    return OptionError(_message(where, found, need, fix))


def cannot_tune(where: str, found: str, need: str, fix: str = "") -> TuningError:
    """Build the error of a tuner or its records: where, found, need, fix."""
    return TuningError(_message(where, found, need, fix))
