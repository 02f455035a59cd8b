"""Report of a model: who computes each function, why, and its estimated time.

print(tvm_hopper.relax.report(ex))                              # what relax.build returned
tvm_hopper.relax.report(mod, target, sizes={"length": 2048})    # before it is built
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import tvm
from tvm.target import Target

from tvm_hopper.errors import HopperError
from tvm_hopper.facts.devices import Chip
from tvm_hopper.requests.targets import chip_of_target, is_ours

from .keep_records import records_of
from .lowering import scheduling_passes
from .model_table import as_html, as_text
from .model_times import call_time, symbols_of
from .options import as_options
from .records import OURS, FunctionRecord
from .schedule_functions import ATTR


@dataclass(frozen=True)
class ModelReport:
    """The functions of a model; print it, show it in a notebook, or use `as_dict()`.

    Attributes
    ----------
    functions : tuple of FunctionRecord
        In the order of the module.
    sizes : mapping of str to int
        Values of the model's symbols, for estimates.
    """

    functions: tuple[FunctionRecord, ...]
    sizes: Mapping[str, int]
    chip: Chip = field(default_factory=Chip, repr=False)

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

    def times(self, caller: str) -> dict[str, float | None]:
        """Estimate the time of a Relax function, by the functions that it calls.

        Parameters
        ----------
        caller : str
            Its name, as "prefill".

        Returns
        -------
        microseconds : dict of str to float or None
            Total time of the calls of each function, longest first; None if unknown: the kernel is
            not ours, or a symbol has no value.

        Raises
        ------
        HopperError
            No function of that name calls a kernel.
        """
        if caller not in self.callers:
            known = ", ".join(self.callers) or "none: nothing is called"
            raise HopperError(f"report: found no calls in {caller!r}; need one of {known}")
        found: dict[str, float | None] = {}
        for record in self.functions:
            for call in record.calls:
                if call.caller != caller:
                    continue
                one = call_time(record, call, self.sizes, self.chip)
                so_far = found.get(record.name, 0.0)
                if one is None or so_far is None:
                    found[record.name] = None
                else:
                    found[record.name] = so_far + call.count * one
        return dict(sorted(found.items(), key=lambda x: -(x[1] or 0)))

    @property
    def callers(self) -> tuple[str, ...]:
        """The functions of Relax that call kernels."""
        return tuple(dict.fromkeys(c.caller for x in self.functions for c in x.calls))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        found = {
            "sizes": dict(self.sizes),
            "functions": [asdict(x) for x in self.functions],
            "microseconds": {caller: self.times(caller) for caller in self.callers},
        }
        plain: dict[str, Any] = json.loads(json.dumps(found))
        return plain

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def report(
    model: Any, target: Any = None, sizes: Mapping[str, int] | None = None, **options: Any
) -> ModelReport:
    """Report who computes each function of a model.

    Parameters
    ----------
    model : IRModule or Executable
        An exported Relax module, which the pipeline then lowers; a module that the pipeline
        returned; or an executable that it built, also in another process.
    target : Target or str, optional
        For a module that is not lowered yet; None: the one in scope. For others: the chip whose
        times are estimated.
    sizes : mapping of str to int, optional
        Values of the model's symbols, for estimates: {"batch": 1, "length": 2048}.
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
    return ModelReport(functions, given, chip_of_target(target))


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
