"""Report of a model: what each function costs, who computes it, and why not us.

print(tvm_hopper.relax.report(ex))                              # what relax.build returned
tvm_hopper.relax.report("model.so")                             # a library, without a GPU
tvm_hopper.relax.report(mod, target, sizes={"length": 2048})    # before it is built
tvm_hopper.relax.report(ex).measure(machine, arguments)         # times of a GPU
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from tvm_hopper.errors import HopperError
from tvm_hopper.facts.devices import Chip
from tvm_hopper.requests.targets import chip_of_target, is_ours

from .keep_records import records_of
from .lowering import scheduling_passes
from .model_table import as_html, as_page, as_text, sizes_text
from .model_times import (
    QUANTITIES,
    Cost,
    assumed_sizes,
    call_cost,
    kernel_for,
    sizes_inside,
    symbols_of,
)
from .options import as_options
from .records import OURS, CallRecord, FunctionRecord, KernelRecord
from .schedule_functions import ATTR

ESTIMATED, BOUND, MEASURED = "estimated", "at least", "measured"


@dataclass(frozen=True)
class ReportRow:
    """What one function costs the function that calls it.

    Attributes
    ----------
    caller : str
        The Relax function.
    function : FunctionRecord
        Who computes it, and why.
    calls : int
        How many there are.
    cost : Cost
        Of all of them.
    time_is : str
        "estimated" by our cost models, "at least" what a roofline says, or "measured".
    kernel : KernelRecord or None
        The kernel of ours that runs for these sizes, of the most frequent shapes.
    rows : str
        What its rows are: "batch * length = 2048".
    weight_bytes : float
        Bytes that calls move on weights alone: work that could be done once.
    """

    caller: str
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
class ModelReport:
    """The functions of a model; print it, show it in a notebook, or use `as_dict()`.

    Attributes
    ----------
    functions : tuple of FunctionRecord
        In the order of the module.
    sizes : mapping of str to int
        Values of the model's symbols.
    assumed : tuple of str
        Those of them that nobody gave.
    measured : mapping of (str, str) to float
        Microseconds of all calls of a function, by caller and function, see `measure`.
    """

    functions: tuple[FunctionRecord, ...]
    sizes: Mapping[str, int]
    chip: Chip = field(default_factory=Chip, repr=False)
    assumed: tuple[str, ...] = ()
    measured: Mapping[tuple[str, str], float] = field(default_factory=dict, repr=False)

    @property
    def others(self) -> tuple[FunctionRecord, ...]:
        """The functions that are not computed by kernels of ours."""
        return tuple(x for x in self.functions if x.computed_by != OURS)

    def __getitem__(self, name: str) -> FunctionRecord:
        """Return the record of one function by its name."""
        for record in self.functions:
            if record.name == name:
                return record
        known = ", ".join(x.name for x in self.functions)
        raise HopperError(f"report: found no function {name}; need one of {known}")

    def __iter__(self) -> Iterator[FunctionRecord]:
        """Iterate over the records, as `functions` has them."""
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    @property
    def callers(self) -> tuple[str, ...]:
        """The functions of Relax that call kernels."""
        return tuple(dict.fromkeys(c.caller for x in self.functions for c in x.calls))

    def rows(self, caller: str) -> tuple[ReportRow, ...]:
        """Return what a Relax function calls, the most expensive first.

        Parameters
        ----------
        caller : str
            Its name, as "prefill".

        Raises
        ------
        HopperError
            No function of that name calls a kernel.
        """
        if caller not in self.callers:
            known = ", ".join(self.callers) or "none: nothing is called"
            raise HopperError(f"report: found no calls in {caller!r}; need one of {known}")
        found = []
        for record in self.functions:
            calls = [x for x in record.calls if x.caller == caller]
            if calls:
                found.append(self._row(caller, record, calls))
        return tuple(sorted(found, key=lambda x: -(x.cost.microseconds or 0)))

    def times(self, caller: str) -> dict[str, float | None]:
        """Return the microseconds of all calls of each function, the longest first.

        Parameters
        ----------
        caller : str
            The Relax function that calls.

        Returns
        -------
        microseconds : dict of str to float or None
            None: a size that is needed has no value.

        Raises
        ------
        HopperError
            No function of that name calls a kernel.
        """
        return {x.function.name: x.cost.microseconds for x in self.rows(caller)}

    def served(self, caller: str) -> dict[str, float | None]:
        """Return the shares of a Relax function that kernels of ours compute.

        Parameters
        ----------
        caller : str
            The Relax function that calls.

        Returns
        -------
        shares : dict of str to float or None
            Of "flops", "num_bytes" and "microseconds"; what is not known counts on neither side.
            None where there is nothing.

        Raises
        ------
        HopperError
            No function of that name calls a kernel.
        """
        rows = self.rows(caller)
        shares: dict[str, float | None] = {}
        for name in QUANTITIES:
            ours = sum(getattr(x.cost, name) or 0 for x in rows if x.is_served)
            total = sum(getattr(x.cost, name) or 0 for x in rows)
            shares[name] = ours / total if total else None
        return shares

    def measure(
        self, machine: Any, arguments: Sequence[Any], caller: str | None = None, repeats: int = 5
    ) -> ModelReport:
        """Return this report with times of a device in place of estimates.

        Parameters
        ----------
        machine : relax.VirtualMachine
            That runs the model.
        arguments : sequence
            Of the Relax function, on its device.
        caller : str, optional
            The Relax function; None: the only one that calls kernels.
        repeats : int
            How often each kernel is timed, behind a cache that holds other data; the median counts.

        Raises
        ------
        HopperError
            It is unknown which function is meant, or there is no timer for the device.
        """
        from .measure_calls import measure_calls

        if caller is None and len(self.callers) != 1:
            raise HopperError(
                f"report.measure: found several functions, {', '.join(self.callers)}; "
                f'need one: measure(machine, arguments, "{next(iter(self.callers), "main")}")'
            )
        caller = caller or self.callers[0]
        wanted = {x.function.name for x in self.rows(caller)}
        times = measure_calls(machine, caller, arguments, wanted, repeats)
        found = {(caller, name): time for name, time in times.items()}
        return replace(self, measured={**self.measured, **found})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        found = {
            "sizes": dict(self.sizes),
            "assumed": list(self.assumed),
            "functions": [asdict(x) for x in self.functions],
            "served": {caller: self.served(caller) for caller in self.callers},
            "rows": {caller: [_plain(x) for x in self.rows(caller)] for caller in self.callers},
        }
        plain: dict[str, Any] = json.loads(json.dumps(found))
        return plain

    def html(self, path: str | Path) -> None:
        """Write the report as a page of its own."""
        Path(path).write_text(as_page(self), encoding="utf-8")

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def _row(self, caller: str, record: FunctionRecord, calls: list[CallRecord]) -> ReportRow:
        costs = [call_cost(record, x, self.sizes, self.chip).times(x.count) for x in calls]
        cost = sum(costs, Cost())
        time_is = ESTIMATED if record.computed_by == OURS else BOUND
        if (caller, record.name) in self.measured:
            cost = replace(cost, microseconds=self.measured[caller, record.name])
            time_is = MEASURED
        main = max(calls, key=lambda x: x.count)
        again = [y.num_bytes or 0 for x, y in zip(calls, costs, strict=True) if x.of_weights]
        return ReportRow(
            caller,
            record,
            sum(x.count for x in calls),
            cost,
            time_is,
            kernel_for(record, sizes_inside(record, main, self.sizes)),
            _rows_text(record, main, self.sizes),
            sum(again),
        )


def _plain(row: ReportRow) -> dict[str, Any]:
    """Return a row as plain values; `functions` has the rest of its function."""
    return {**asdict(row), "function": row.function.name}


def _rows_text(record: FunctionRecord, call: CallRecord, sizes: Mapping[str, int]) -> str:
    """Say what a function's rows are in a call; empty where they are a number."""
    rows = record.product.rows if record.product is not None else "rows"
    for tensor, shape in zip(record.tensors, call.shapes, strict=False):
        for name, text in zip(tensor.shape, shape, strict=False):
            if name == rows and name.isidentifier():
                return f"{text}{sizes_text(text, sizes)}"
    return ""


def report(
    model: Any, target: Any = None, sizes: Mapping[str, int] | None = None, **options: Any
) -> ModelReport:
    """Report what each function of a model costs, and who computes it.

    Parameters
    ----------
    model : IRModule, Executable, or path
        An exported Relax module, which the pipeline then lowers; a module that the pipeline
        returned; an executable that it built, also in another process; or the file of one.
    target : Target or str, optional
        For a module that is not lowered yet; None: the one in scope. For others: the chip whose
        times are estimated.
    sizes : mapping of str to int, optional
        Values of the model's symbols: {"batch": 1, "length": 2048}. For others one sequence of 1024
        tokens is assumed. "context" is what each sequence has in a paged cache.
    options
        Options of the pipeline, for a module that is not lowered yet.

    Returns
    -------
    report : ModelReport
        Its functions.

    Raises
    ------
    HopperError
        The pipeline did not build the model, a size is illegal, or there is no target.
    """
    given = dict(sizes or {})
    target = Target(target) if isinstance(target, (str, dict)) else target
    target = target or Target.current(allow_none=True)
    if isinstance(model, tvm.IRModule) and not (model.attrs and ATTR in model.attrs):
        model = _lowered(model, target, options)
    elif options:
        as_options(options)
        names = ", ".join(options)
        raise HopperError(f"report: found {names} for a model that is lowered; need a plain module")
    functions = records_of(model)
    _check_sizes(functions, given)
    assumed = {x: size for x, size in assumed_sizes(functions).items() if x not in given}
    chip = chip_of_target(target)
    return ModelReport(functions, {**given, **assumed}, chip, tuple(assumed))


def _lowered(mod: tvm.IRModule, target: Any, options: dict[str, Any]) -> tvm.IRModule:
    checked = as_options(options)
    if target is None or not is_ours(target):
        found = "no target" if target is None else f"target {target.kind.name}"
        raise HopperError(
            f"report: found {found}; need a cuda target with arch sm_90a: "
            'report(mod, "nvidia/nvidia-h200")'
        )
    with target:
        return tvm.transform.Sequential(scheduling_passes(target, checked))(mod)


def _check_sizes(functions: tuple[FunctionRecord, ...], sizes: Mapping[str, int]) -> None:
    symbols = {x for record in functions for call in record.calls for x in symbols_of(call)}
    for name, size in sizes.items():
        if name not in symbols:
            known = ", ".join(sorted(symbols)) or "none"
            raise HopperError(
                f"report: found a size of {name!r}; need symbols of the model: {known}"
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise HopperError(f"report: found size {name}={size!r}; need a number, 0 or more")


def model_report_command(arguments: argparse.Namespace) -> int:
    """Print the report of a library; with a path also as a page."""
    said = report(arguments.file, sizes=dict(arguments.sizes))
    if arguments.html is not None:
        try:
            said.html(arguments.html)
        except OSError as error:
            raise HopperError(
                f"model-report {arguments.html}: found no place to write at ({error.strerror}); "
                "need a path in a folder"
            ) from error
    print(json.dumps(said.as_dict(), indent=1) if arguments.json else said)
    return 0
