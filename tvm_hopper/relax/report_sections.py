"""What one Relax function calls, and what each of these functions costs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tvm_hopper.facts.devices import Chip

from .model_times import Cost, call_cost, kernel_for, names_in, sizes_inside, symbols_of, value_of
from .records import OURS, CallRecord, FunctionRecord, KernelRecord

ESTIMATED, BOUND, MEASURED = "estimated", "at least", "measured"
QUANTITIES = ("flops", "num_bytes", "microseconds")


@dataclass(frozen=True)
class ReportRow:
    """What one function costs the function that calls it.

    - `function`: who computes it, and why.
    - `calls`: how many there are.
    - `cost`: of all of them.
    - `time_is`: "estimated" by our cost models, "at least" what a roofline says, or "measured".
    - `kernel`: the kernel of ours that runs for these sizes, of the most frequent shapes.
    - `rows`: what its rows are: "batch * length = 2048".
    - `weight_bytes`: bytes that calls move on weights alone: work that could be done once.
    """

    function: FunctionRecord
    calls: int
    cost: Cost
    time_is: str
    kernel: KernelRecord | None
    rows: str
    weight_bytes: float

    @property
    def is_served(self) -> bool:
        """Whether kernels of ours compute it."""
        return self.function.computed_by == OURS


@dataclass(frozen=True)
class Section:
    """What one Relax function calls.

    - `caller`: the Relax function.
    - `rows`: the most expensive first.
    """

    caller: str
    rows: tuple[ReportRow, ...]

    @property
    def times(self) -> dict[str, float | None]:
        """Microseconds of all calls of each function; None: a size has no value."""
        return {x.function.name: x.cost.microseconds for x in self.rows}

    @property
    def total(self) -> float:
        """Microseconds of all that is known."""
        return sum(x or 0.0 for x in self.times.values())

    @property
    def served(self) -> dict[str, float | None]:
        """Shares of "flops", "num_bytes" and "microseconds" that kernels of ours compute.

        What is not known counts on neither side. None where there is nothing.
        """
        shares: dict[str, float | None] = {}
        for name in QUANTITIES:
            ours = sum(getattr(x.cost, name) or 0 for x in self.rows if x.is_served)
            total = sum(getattr(x.cost, name) or 0 for x in self.rows)
            shares[name] = ours / total if total else None
        return shares

    @property
    def symbols(self) -> list[str]:
        """Symbols that the sizes of its calls depend on."""
        calls = (x for row in self.rows for x in row.function.calls if x.caller == self.caller)
        return sorted({name for call in calls for name in symbols_of(call)})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; rows name their functions."""
        rows = [{**asdict(x), "function": x.function.name} for x in self.rows]
        return {"served": self.served, "rows": rows}


def make_section(
    caller: str,
    functions: Iterable[FunctionRecord],
    sizes: Mapping[str, int],
    chip: Chip,
    measured: Mapping[tuple[str, str], float],
) -> Section:
    """Return what a Relax function calls.

    - `caller`: its name.
    - `functions`: those of the model.
    - `sizes`: values of symbols.
    - `chip`: that it runs on.
    - `measured`: microseconds by caller and function, instead of estimates.
    """
    found = []
    for record in functions:
        calls = [x for x in record.calls if x.caller == caller]
        if calls:
            row = _row(record, calls, sizes, chip)
            time = measured.get((caller, record.name))
            if time is not None:
                cost = replace(row.cost, microseconds=time)
                row = replace(row, cost=cost, time_is=MEASURED)
            found.append(row)
    return Section(caller, tuple(sorted(found, key=lambda x: -(x.cost.microseconds or 0))))


def _row(
    record: FunctionRecord, calls: list[CallRecord], sizes: Mapping[str, int], chip: Chip
) -> ReportRow:
    costs = [call_cost(record, x, sizes, chip).times(x.count) for x in calls]
    main = max(calls, key=lambda x: x.count)
    again = [y.num_bytes or 0 for x, y in zip(calls, costs, strict=True) if x.of_weights]
    return ReportRow(
        record,
        sum(x.count for x in calls),
        sum(costs, Cost()),
        ESTIMATED if record.computed_by == OURS else BOUND,
        kernel_for(record, sizes_inside(record, main, sizes)),
        _rows_text(record, main, sizes),
        sum(again),
    )


def _rows_text(record: FunctionRecord, call: CallRecord, sizes: Mapping[str, int]) -> str:
    """Say what a function's rows are in a call; empty where they are a number."""
    rows = record.product.rows if record.product is not None else "rows"
    for tensor, shape in zip(record.tensors, call.shapes, strict=False):
        for name, text in zip(tensor.shape, shape, strict=False):
            if name == rows and name.isidentifier():
                value = value_of(text, sizes) if names_in([text]) else None
                return text if value is None else f"{text} = {value}"
    return ""
