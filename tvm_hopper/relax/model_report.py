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
from .model_table import as_html, as_page, as_text
from .model_times import assumed_sizes, symbols_of
from .options import as_options
from .records import OURS, FunctionRecord
from .report_sections import Section, make_section
from .schedule_functions import ATTR


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
        Symbols without a given size: their values are assumed.
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

    def section(self, caller: str) -> Section:
        """Return what a Relax function calls, the most expensive first, and the share served.

        - `caller`: its name, as "prefill".
        - raises HopperError: no function of that name calls a kernel.
        """
        if caller not in self.callers:
            known = ", ".join(self.callers) or "none: nothing is called"
            raise HopperError(f"report: found no calls in {caller!r}; need one of {known}")
        return make_section(caller, self.functions, self.sizes, self.chip, self.measured)

    @property
    def sections(self) -> tuple[Section, ...]:
        """What each Relax function calls, the most expensive one first."""
        return tuple(sorted(map(self.section, self.callers), key=lambda x: -x.total))

    def measure(
        self, machine: Any, arguments: Sequence[Any], caller: str | None = None, repeats: int = 5
    ) -> ModelReport:
        """Return this report with times of a device in place of estimates.

        - `machine` (relax.VirtualMachine): that runs the model.
        - `arguments` (sequence): of the Relax function, on its device.
        - `caller`: the Relax function; None: the only one that calls kernels.
        - `repeats`: how often each kernel is timed, behind a cache that holds other data; the
          median counts.
        - raises HopperError: it is unknown which function is meant, or there is no timer for the
          device.
        """
        from .measure_calls import measure_calls

        if caller is None and len(self.callers) != 1:
            raise HopperError(
                f"report.measure: found several functions, {', '.join(self.callers)}; "
                f'need one: measure(machine, arguments, "{next(iter(self.callers), "main")}")'
            )
        caller = caller or self.callers[0]
        times = measure_calls(machine, caller, arguments, self.section(caller).times, repeats)
        found = {(caller, name): time for name, time in times.items()}
        return replace(self, measured={**self.measured, **found})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        found = {
            "sizes": dict(self.sizes),
            "assumed": list(self.assumed),
            "functions": [asdict(x) for x in self.functions],
            "callers": {x.caller: x.as_dict() for x in self.sections},
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
