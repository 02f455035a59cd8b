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
import re
import zlib
from typing import Any

import tvm
from tvm import relax
from tvm.ir import StringImm

from tvm_hopper import ir
from tvm_hopper.errors import HopperError

from .records import FunctionRecord, from_text
from .schedule_functions import ATTR

FUNCTION = "tvm_hopper_model"
MARK = "tvm_hopper.model:"
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
    """Read the records of a module that was scheduled, or of an executable.

    Raises
    ------
    HopperError
        It has none.
    """
    if isinstance(thing, tvm.IRModule):
        text = thing.attrs.get(ATTR) if thing.attrs else None
    else:
        text = _find(thing)
    if text is None:
        raise HopperError(
            f"model: found no records of tvm_hopper; need one that it built; {BUILD_IT}"
        )
    return from_text(str(text))


def _packed(text: str) -> str:
    return MARK + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _find(executable: Any) -> str | None:
    """Find the records among the constants of an executable."""
    module = executable
    if not isinstance(module, tvm.runtime.Module):
        module = getattr(executable, "mod", None)
    if not isinstance(module, tvm.runtime.Module):
        raise HopperError(
            f"model: found {type(executable).__name__}; need an IRModule, or what relax.build gave"
        )
    if not module.implements_function("stats"):
        return None
    match = re.search(MARK + r"([A-Za-z0-9+/=]+)", str(module["stats"]()))
    return zlib.decompress(base64.b64decode(match[1])).decode() if match else None
