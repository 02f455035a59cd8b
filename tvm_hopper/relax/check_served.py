"""Raise errors for functions without a kernel, and warn if few functions are ours.

    def hist(X, H): plain loops    ->    LoweringError: function hist: found loops that no rule ..

Needs: the records of `ScheduleFunctions`.
Leaves: the module as it was.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm

from tvm_hopper.dlight.decisions import NOT_APPLICABLE
from tvm_hopper.errors import cannot_lower, warn
from tvm_hopper.requests import keys, options

from .keep_records import records_of
from .model_times import names_in, value_of
from .records import NOBODY, OURS, STOCK, FunctionRecord

LITTLE = 0.1  # of the operations of a model
NEED = "functions that rules of tvm_hopper take"
FIX = "tvm_hopper.relax.report(ex) has the reasons"


@tvm.transform.module_pass(opt_level=0, name="tvm_hopper.CheckServed")
class CheckServed:
    """The pass; see the module."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Check the records of a module that was scheduled."""
        records = records_of(mod)
        for record in records:
            if record.computed_by == NOBODY:
                reasons = "; ".join(f"{rule}: {why}" for rule, why in _told(record))
                raise cannot_lower(
                    f"function {record.name}",
                    f"loops that no rule makes a kernel of ({reasons})",
                    "a kernel: the host cannot touch what is on the device",
                    "write a schedule and mark the function tirx.is_scheduled, or, if it is for "
                    "the host, tirx.is_host_func",
                )
        if (shortage := describe_little(records)) is not None:
            if options.read(keys.STRICT):
                raise cannot_lower(f"model, {keys.STRICT}", shortage, NEED, FIX)
            warn(f"model: found {shortage}; need {NEED}; {FIX}")
        return mod


def describe_little(records: tuple[FunctionRecord, ...]) -> str | None:
    """Say how little of a model is computed by kernels of ours; None where it is enough."""
    shares = {OURS: 0, STOCK: 0}
    for record in records:
        if record.computed_by in shares:
            calls = sum(call.count for call in record.calls) or 1
            shares[record.computed_by] += calls * _operations(record)
    total = sum(shares.values())
    if not total or shares[OURS] >= LITTLE * total:
        return None
    left = [x for x in records if x.computed_by == STOCK]
    dearest = max(left, key=_operations)
    rule, why = next(_told(dearest), ("", ""))
    percent = 100 * shares[OURS] / total
    return (
        f"{percent:.0f}% of its operations in kernels of tvm_hopper, and the others left to "
        f"TVM's rules ({dearest.name}: {rule}: {why})"
    )


def _operations(record: FunctionRecord) -> int:
    """Return a function's FLOPs, a symbolic extent counted as one."""
    return value_of(record.flops, dict.fromkeys(names_in([record.flops]), 1)) or 0


def _told(record: FunctionRecord) -> Iterator[tuple[str, str]]:
    """Yield the rules that looked at a function, and why they refused it."""
    yield from (x for x in record.refused if x[1] not in ("", NOT_APPLICABLE))
