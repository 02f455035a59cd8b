"""Load a kernel from a Python file, given as FILE.py:NAME."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from typing import Any

from tvm_hopper.errors import HopperError


def load_kernel(file: Path, name: str) -> Any:
    """Run a file and return what it holds under a name.

    - `file`: a Python file. It is run, so it must be one that you trust.
    - `name`: a module, a PrimFunc, a schedule, or a function without arguments that returns one.
    - returns (IRModule, PrimFunc, Executable or runtime module): what the file holds; the module
      of a schedule.
    - raises ValueError: the file does not run, or holds no such thing.
    """
    unique = f"_kernel_file_{file.stem}"  # a file may be called as a module that it imports
    spec = importlib.util.spec_from_file_location(unique, file)
    assert spec is not None  # a .py file always has one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(
            f"found {type(error).__name__} in {file.name} ({error}); need a file that runs"
        ) from error
    made = getattr(module, name, None)
    if inspect.isfunction(made):
        if inspect.signature(made).parameters:
            raise ValueError(f"found arguments of {name}; need a function without any")
        try:
            made = made()
        except HopperError:  # it says all by itself
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise ValueError(
                f"found {type(error).__name__} in {name}, at {Path(place.filename).name}:"
                f"{place.lineno} ({error}); need a function that returns a module"
            ) from error
    return _module_of(made, f"{name!r} in {file.name}")


def _module_of(made: Any, name: str) -> Any:
    import tvm  # late: a mistake in the file is reported without it
    from tvm import s_tir, tirx

    if isinstance(made, s_tir.Schedule):
        return made.mod
    known = (tvm.IRModule, tirx.PrimFunc, tvm.runtime.Executable, tvm.runtime.Module)
    if not isinstance(made, known):
        found = f"no {name}, or None" if made is None else f"{type(made).__name__} as {name}"
        raise ValueError(
            f"found {found}; need a module, a schedule, or a function that returns one"
        )
    return made
