"""Well-formedness checks between passes, with `TVM_HOPPER_VERIFY=1`."""

from __future__ import annotations

import os
from collections.abc import Iterable

import tvm
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import VerifyError


def verify_between_passes() -> bool:
    """Tell whether the environment requests a check after each of our passes."""
    return os.environ.get("TVM_HOPPER_VERIFY", "0") not in ("", "0")


def check_well_formed(before: Iterable[tirx.PrimFunc], mod: tvm.IRModule, after: str) -> None:
    """Refuse what a pass made, if requested and if what it was given was well formed."""
    if not verify_between_passes() or _ill_formed(before):
        return
    for gv, func in mod.functions.items():
        error = _ill_formed([func])
        if error is not None:
            raise VerifyError(
                f"{gv.name_hint} after {after}: found IR that is not well formed "
                f"({error}); need every variable and buffer defined once, before its use"
            )


def _ill_formed(functions: Iterable[tirx.PrimFunc]) -> Exception | None:
    """Return what TVM's verifier says; its own pragmas of lowered loops do not pass it either."""
    for func in functions:
        has_blocks = bool(ir.find_all(func.body, ir.SBlock))
        analysis = s_tir.analysis if has_blocks else tirx.analysis  # TVM has a verifier for each
        try:
            analysis.verify_well_formed(func, assert_mode=True)
        except Exception as error:
            return error
    return None
