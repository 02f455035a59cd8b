"""Attach records to a model, so that its executable can be queried later.

    @R.function
    def tvm_hopper_model():
        return "tvm_hopper.model:eJy..."                            the records, packed

The text is one of the executable's constants, which `stats` lists: it is read without a device.

Needs: the module's attribute `schedule_functions.ATTR`; without one nothing is added.
Leaves: an additional function without callers.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.ir import StringImm

from tvm_hopper import ir
from tvm_hopper.errors import HopperError

from .records import FunctionRecord, from_text
from .schedule_functions import ATTR

FUNCTION = "tvm_hopper_model"
MARK, END = "tvm_hopper.model:", "!"
BUILD_IT = 'build it with relax.build(mod, target, relax_pipeline="tvm_hopper")'


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.KeepRecords")
class KeepRecords:
    """The pass; see the module."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Add the function."""
        text = mod.attrs.get(ATTR) if mod.attrs else None
        if text is None or any(_is_ours(x, f) for x, f in mod.functions.items()):
            return mod
        taken = {gv.name_hint for gv in mod.functions}
        names = (FUNCTION + "_" * i for i in itertools.count())  # a model may have one of that name
        builder = relax.BlockBuilder(mod)
        with builder.function(next(x for x in names if x not in taken), []):
            builder.emit_func_output(StringImm(_packed(str(text))))
        return builder.finalize()


def _is_ours(name: tvm.ir.GlobalVar, func: Any) -> bool:
    """Tell a function that returns packed records."""
    if not name.name_hint.startswith(FUNCTION) or not isinstance(func, relax.Function):
        return False
    return any(str(x.value).startswith(MARK) for x in ir.find_all(func.body, StringImm))


def records_of(thing: Any) -> tuple[FunctionRecord, ...]:
    """Read the records of a module that was scheduled, of an executable, or of its file.

    - raises HopperError: it has none, or there is no such file.
    """
    if isinstance(thing, tvm.IRModule):
        text = str(thing.attrs[ATTR]) if thing.attrs and ATTR in thing.attrs else None
    elif isinstance(thing, (str, os.PathLike)):
        text = _unpacked(_read(thing))
    else:
        text = _unpacked(_constants(thing))
    if text is None:
        where = f"model {thing}" if isinstance(thing, (str, os.PathLike)) else "model"
        raise HopperError(
            f"{where}: found no records of tvm_hopper; need one that it built; {BUILD_IT}"
        )
    return from_text(text)


def _packed(text: str) -> str:
    return MARK + base64.b64encode(zlib.compress(text.encode(), 9)).decode() + END


def _unpacked(data: bytes) -> str | None:
    """Find packed records among bytes: a library holds constants as they are."""
    for found in re.finditer(MARK.encode() + rb"([A-Za-z0-9+/=]+)" + END.encode(), data):
        try:
            return zlib.decompress(base64.b64decode(found[1])).decode()
        except (ValueError, zlib.error):  # a file that speaks of the mark
            continue
    return None


def _read(path: Any) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise HopperError(
            f"model {path}: found no file to read ({error.strerror}); need a library that "
            "ex.export_library wrote"
        ) from error


def _constants(executable: Any) -> bytes:
    """Return the constants of an executable, among others."""
    module = executable
    if not isinstance(module, tvm.runtime.Module):
        module = getattr(executable, "mod", None)
    if not isinstance(module, tvm.runtime.Module):
        raise HopperError(
            f"model: found {type(executable).__name__}; need an IRModule, what relax.build gave, "
            "or the path of a library"
        )
    if not module.implements_function("stats"):
        return b""
    try:
        return str(module["stats"]()).encode()
    except RuntimeError:  # TVM cannot list constants that are floats; a file has them
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "executable")
            module.write_to_file(str(path), "")
            return path.read_bytes()
