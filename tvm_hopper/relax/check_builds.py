"""Try whether a function that a rule of ours took builds; what does not is for the next rule.

Products are lowered for a look when they are scheduled.  A memory-bound kernel with two symbols or
more may fail later: whether a vector leaves its row is then more than TVM can tell.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.target import Target

from tvm_hopper import ir
from tvm_hopper.errors import HopperError
from tvm_hopper.schedule.reasons import TVM_ERRORS, in_words

SYMBOLS = 2  # from which on it is tried


def find_fault(func: tirx.PrimFunc, target: Target) -> str | None:
    """Build a scheduled function for a look; return why it does not, None where it does.

    Functions with fewer than two symbols among their shapes are taken to build.
    """
    symbols: list[Any] = []
    for param in func.params:
        if tirx.is_buffer_var(param):
            found = [x for x in param.ty.shape if ir.static_int(x) is None]
            symbols += [x for x in found if not any(x.same_as(y) for y in symbols)]
    if len(symbols) < SYMBOLS:
        return None
    try:
        with PassContext():
            tvm.compile(func.with_attr("global_symbol", "main"), target=target)
    except HopperError as error:
        return str(error)
    except TVM_ERRORS as error:
        return f"what TVM cannot build{in_words(error)}"
    return None
