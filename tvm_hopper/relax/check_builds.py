"""Build memory-bound functions on trial; those that fail go to the next rule.

Products are lowered for a look when they are scheduled.  A memory-bound kernel with symbols may
fail later: whether a vector leaves its row can be more than TVM can tell.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir.transform import PassContext
from tvm.target import Target

from tvm_hopper import ir
from tvm_hopper.errors import HopperError
from tvm_hopper.requests import keys
from tvm_hopper.schedule.reasons import TVM_ERRORS, in_words


def find_fault(func: tirx.PrimFunc, target: Target) -> str | None:
    """Build a scheduled function for a look; return why it does not, None where it does.

    One without symbols among its shapes, and one that is not memory-bound, is taken to build.
    """
    shapes = [x.ty.shape for x in func.params if tirx.is_buffer_var(x)]
    if all(ir.static_int(extent) is not None for shape in shapes for extent in shape):
        return None
    kernels = ir.kernels(func)
    if not kernels or not all(keys.MEMORY_BOUND in x.annotations for x in kernels):
        return None
    try:
        with PassContext():
            tvm.compile(func.with_attr("global_symbol", "main"), target=target)
    except HopperError as error:
        return str(error)
    except TVM_ERRORS as error:
        return f"what TVM cannot build{in_words(error)}"
    return None
