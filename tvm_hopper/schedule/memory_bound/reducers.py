"""Tell whether TVM can combine partial results of a reduction.

S[i] = S[i] + X[i, k]                   known, as products, the greatest and the least are
P[i], V[i] = those of the greater V     known: pairs as argmax keeps them, and two sums
Y[i] = Y[i] | X[i, k]                   not known: no thread could have a part of it
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from tvm_hopper import ir
from tvm_hopper.errors import cannot_schedule
from tvm_hopper.schedule.reasons import TVM_ERRORS
from tvm_hopper.schedule.trial import twin

UNKNOWN = "No matched reducer"  # of TVM's message
KNOWN = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


def check_reducer(where: str, sch: s_tir.Schedule, block: Any, body: Any) -> None:
    """Refuse a reduction by an operation that TVM does not know, on a schedule of plain loops."""
    if is_plain_reduction(body) or (not isinstance(body, ir.BufferStore) and _is_known(sch, block)):
        return
    raise cannot_schedule(
        where,
        f"a reduction by {_text(body)}, which TVM cannot combine from parts",
        "a sum, a product, the greatest, the least, two sums, or a pair as that of argmax",
        "write it as several of these: moments as two sums, the greatest two one by one",
    )


def is_plain_reduction(body: Any) -> bool:
    """Tell a sum or the like of what is there and one more value."""
    if not isinstance(body, ir.BufferStore) or not isinstance(body.value, KNOWN):
        return False
    own = tirx.BufferLoad(body.buffer, list(body.indices))
    loads = ir.find_all(body.value, ir.TensorLoad, lambda x: x.source.same_as(body.buffer))
    sides = (body.value.a, body.value.b)
    return len(loads) == 1 and any(tvm_ffi.structural_equal(x, own) for x in sides)


def _is_known(sch: s_tir.Schedule, block: Any) -> bool:
    """Let TVM try it on a copy, with each loop: those of no reduction it refuses otherwise."""
    trial, same = twin(sch)
    for loop in reversed(trial.get_loops(same(block))):
        try:
            trial.rfactor(loop, 0)
        except TVM_ERRORS as error:
            if UNKNOWN in str(error):
                return False
            continue
        return True
    return True


def _text(body: Any) -> str:
    values = [x.value for x in ir.find_all(body, ir.BufferStore)]
    one = " ".join(str(values[0]).split())
    return one if len(values) == 1 else f"a rule of {len(values)} values"
