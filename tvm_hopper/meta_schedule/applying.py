"""Pass that schedules a module by the records of a database.

    mod = tvm_hopper.meta_schedule.apply("tuned")(mod)

Functions that have no record are left as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tvm_hopper.errors import ScheduleError, warn
from tvm_hopper.requests import marks

from .database import Database
from .finding import lookup, open_database
from .scheduling import schedule_with
from .tasks import as_target


def apply(database: Database | str | Path, target: Any = None) -> tvm.transform.Pass:
    """Make a pass that schedules what was tuned.

    Parameters
    ----------
    database : Database, str or Path
        Records, or the work_dir of a tuning run.
    target : Target, str or dict, optional
        What the module is built for; left out, the target in scope when the pass runs.

    Returns
    -------
    transform : tvm.transform.Pass
        Takes a module to one with tuned functions, marked as scheduled for TVM's own rules.

    Raises
    ------
    TuningError
        There are no records, or they cannot be read.
    """
    made = open_database(database)

    @tvm.transform.module_pass(opt_level=0, name="tvm_hopper.ApplyTuned")
    def _apply(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        if made is None:
            return mod
        return _scheduled(mod, made, as_target(target))

    return _apply


def _scheduled(mod: tvm.IRModule, database: Database, target: Target) -> tvm.IRModule:
    changed = {}
    for gv, func in mod.functions.items():
        if not isinstance(func, tirx.PrimFunc) or marks.find_requests(func):
            continue
        config = lookup(database, func, target)
        if config is None:
            continue
        try:
            with target:
                sch = schedule_with(func, config)
        except ScheduleError as error:
            warn(f"{gv.name_hint}: a record does not fit any more: {error}", stacklevel=2)
            continue
        new = sch.mod["main"]
        for name, value in func.attrs.items() if func.attrs else ():
            new = new.with_attr(name, value)
        if "global_symbol" not in (func.attrs or {}):
            new = new.without_attr("global_symbol")
        changed[gv] = new.with_attr("tirx.is_scheduled", True)
    if not changed:
        return mod
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    result.update(tvm.IRModule(changed))
    return result
