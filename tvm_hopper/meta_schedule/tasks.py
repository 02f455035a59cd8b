"""Extract tuning tasks: each function once, symbolic rows once per size class.

    tasks = find_tasks(mod, target)
    tasks[0].name, tasks[0].weight, tasks[0].problem

A function with a symbolic number of rows is tuned at the bounds of its size classes, as static
functions: a trace of a static one would not fit it, a configuration does.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.target import Target

from tvm_hopper import ir, schedule as hs
from tvm_hopper.errors import HopperError, cannot_tune
from tvm_hopper.facts.dtypes import HALF_DTYPES
from tvm_hopper.relax import prepare
from tvm_hopper.requests import marks
from tvm_hopper.requests.targets import find_processor, name_target
from tvm_hopper.schedule.products.recognize import check_types

from .attention_problems import as_attention
from .matmul_problems import as_matmul, find_product
from .memory_problems import as_memory_bound, kinds_that_serve
from .problems import Problem, key_of
from .scheduling import canonical, schedule_with

TUNED_ROWS = 4096  # of a kernel over rows whose number is known at run time only
KINDS: tuple[Callable[[Any, Any], Problem | None], ...] = (
    as_attention,
    as_matmul,
    as_memory_bound,
)


@dataclass(eq=False)
class Task:
    """One static function to tune.

    - `name`: of the function in its module, with its rows where these are symbolic there.
    - `weight`: how often the module calls it; of functions that nothing calls, how many there are.
    - `modules`: the functions as they are in the module: what TVM's own look-up requests.
    """

    name: str
    problem: Problem
    weight: int = 1
    modules: list[tvm.IRModule] = field(default_factory=list)


@dataclass(frozen=True)
class SizeClasses:
    """A function with symbolic rows: the rows up to which each kernel runs, and whose it is."""

    name: str
    key: str
    bounds: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class TaskList:
    """Tasks, size classes, and the functions that are left to TVM, with the reason."""

    tasks: list[Task]
    classes: list[SizeClasses]
    left: dict[str, str]


def as_target(target: Any) -> Target:
    """Return the target that is meant: the one in scope if none is.

    - raises TuningError: there is none, or it names no GPU that is scheduled for.
    """
    need = 'a Hopper GPU, e.g. target="nvidia/nvidia-h200"'
    try:
        made = Target.current(allow_none=True) if target is None else Target(target)
    except (ValueError, TypeError) as error:
        raise cannot_tune("target", f"{target!r} ({error})"[:400], need) from error
    if made is None:
        raise cannot_tune("target", "none", need)
    processor = find_processor(made)
    if processor is None or not processor.has_threads or made.kind.name != "cuda":
        raise cannot_tune("target", name_target(made), need)
    if getattr(processor, "name", "") != "sm_90a":
        raise cannot_tune("target", name_target(made), f"{need}: other chips have no space here")
    return made


def find_tasks(mod: Any, target: Any = None) -> list[Task]:
    """List what there is to tune in a module.

    Parameters
    ----------
    mod : IRModule or PrimFunc
        Functions in plain loops. A Relax model that has none yet is prepared as the pipeline does
        that builds it; of any other Relax module the PrimFuncs that it has.
    target : Target, str or dict, optional
        A Hopper GPU; left out, the one in scope.

    Raises
    ------
    TuningError
        `mod` is no module, or `target` no such GPU.
    """
    return look_for_tasks(mod, as_target(target)).tasks


def _is_model(mod: tvm.IRModule) -> bool:
    """Tell a Relax model that no pass has made functions in plain loops of."""
    functions = list(mod.functions.values())
    has_loops = any(isinstance(x, tirx.PrimFunc) for x in functions)
    return not has_loops and any(isinstance(x, relax.Function) for x in functions)


def look_for_tasks(mod: Any, target: Target) -> TaskList:
    """Find tasks, size classes, and the rest."""
    if isinstance(mod, s_tir.Schedule):
        mod = mod.mod
    if isinstance(mod, tirx.PrimFunc):
        mod = tvm.IRModule({"main": mod})
    if not isinstance(mod, tvm.IRModule):
        raise cannot_tune("tune", type(mod).__name__, "an IRModule or a PrimFunc in plain loops")
    if _is_model(mod):
        mod = prepare(mod, target)
    finder = _TaskFinder(target)
    calls = _calls(mod)
    for name, func in sorted((gv.name_hint, f) for gv, f in mod.functions.items()):
        if isinstance(func, tirx.PrimFunc):
            finder.add(name, func, max(1, calls[name]))
    return finder.task_list


def _why_left(func: tirx.PrimFunc, target: Target) -> str:
    """Say why a function is no task: of a product, what its schedule helper says."""
    site = find_product(func, target)
    if site is not None:
        wide = None if site.problem.acc_dtype == "float32" else "float32"
        try:
            with target:
                schedule_with(canonical(func), hs.MatmulConfig(accumulate=wide))
        except HopperError as error:
            return f"a product that cannot be scheduled: {error}"[:400]
    return "no product, reduction of rows or elementwise program"


def _calls(mod: tvm.IRModule) -> Counter[str]:
    """Count how often the functions of a module that are no PrimFuncs name each other one."""
    others = [f for f in mod.functions.values() if not isinstance(f, tirx.PrimFunc)]
    return Counter(
        str(gv.name_hint) for func in others for gv in ir.find_all(func, tvm.ir.GlobalVar)
    )


class _TaskFinder:
    """Collects the tasks of a module's functions, each once."""

    def __init__(self, target: Target) -> None:
        self.task_list = TaskList([], [], {})
        self._target = target
        self._known: dict[str, Task] = {}

    def add(self, name: str, func: tirx.PrimFunc, weight: int) -> None:
        """Add the tasks of a function, or why it is left to TVM."""
        why = ""
        if marks.find_requests(func) or _is_scheduled(func):
            why = "scheduled already"
        elif symbols := symbols_of(func):
            why = self._add_symbolic(name, func, symbols, weight)
        elif (task := self._add_static(name, func, weight)) is None:
            why = _why_left(func, self._target)
        else:
            task.modules.append(as_stock(func))
        if why:
            self.task_list.left[name] = why

    def _add_static(self, name: str, func: Any, weight: int) -> Task | None:
        key = key_of(canonical(func), self._target)
        if key in self._known:
            self._known[key].weight += weight
            return self._known[key]
        problem = next((x for kind in KINDS if (x := kind(func, self._target)) is not None), None)
        if problem is None:
            return None
        self._known[key] = Task(name, problem, weight)
        self.task_list.tasks.append(self._known[key])
        return self._known[key]

    def _add_symbolic(self, name: str, func: Any, symbols: list[Any], weight: int) -> str:
        """Add the size classes of a function with symbolic rows; return why there are none."""
        if len(symbols) > 1:
            return f"{len(symbols)} symbolic extents; one of them is tuned"
        site = find_product(func, self._target)
        if site is None:
            # One kernel serves any number of rows or elements, so one size does.
            if not any(kinds_that_serve(canonical(func), self._target)):
                return "symbolic extents of what is no product and no kernel over rows"
            is_tuned = self._add_sizes(name, func, symbols[0], (TUNED_ROWS,), weight)
            return "" if is_tuned else "a kernel over rows that cannot be scheduled"
        problem = site.problem
        n, k = problem.n.extent, problem.k.extent
        if isinstance(problem.m.extent, int) or not isinstance(n, int) or not isinstance(k, int):
            return "a symbolic extent that is not the rows"
        if not isinstance(problem.batch, int):
            return "a batch of any number of products, and their rows"
        accumulate = "float32" if problem.acc_dtype in HALF_DTYPES else None
        bounds: Sequence[int] = ()
        with self._target, contextlib.suppress(HopperError):  # then nothing can be scheduled
            check_types(problem, hs.MatmulConfig(accumulate=accumulate))
            bounds = hs.choose_classes(
                n,
                k,
                problem.lhs.dtype,
                hs.MatmulConfig(accumulate=accumulate),
                majors=(problem.lhs.major, problem.rhs.major),
                out_dtype=site.out_dtype,
                batch=problem.batch,
            )
        is_tuned = self._add_sizes(name, func, symbols[0], bounds, weight)
        return "" if is_tuned else "a product that cannot be scheduled"

    def _add_sizes(
        self, name: str, func: Any, symbol: Any, sizes: Sequence[int], weight: int
    ) -> bool:
        """Add the tasks of a function with so many rows; tell whether there are any."""
        keys = []
        for rows in sizes:
            try:
                static = bind_rows(func, symbol, rows)
            except HopperError:
                continue
            task = self._add_static(f"{name} [{rows} rows]", static, weight)
            if task is not None:
                keys.append((rows, task.problem.key))
        if keys:
            key = key_of(canonical(func), self._target)
            self.task_list.classes.append(SizeClasses(name, key, tuple(keys)))
        return bool(keys)


def symbols_of(func: tirx.PrimFunc) -> list[Any]:
    """Return the variables in the shapes of a function's tensors, each once."""
    symbols: list[Any] = []
    for param in func.params:
        if tirx.is_buffer_var(param):
            for extent in param.ty.shape:
                if ir.static_int(extent) is not None:
                    continue
                names = [extent] if isinstance(extent, tirx.Var) else ir.find_all(extent, tirx.Var)
                symbols += [x for x in names if not any(x.same_as(y) for y in symbols)]
    return symbols


def bind_rows(func: tirx.PrimFunc, symbol: Any, rows: int) -> tirx.PrimFunc:
    """Return a function with its one symbolic extent set to a number."""
    number = tirx.IntImm(ir.dtype_of(symbol), rows)

    def bind(variable: Any) -> Any:
        return number if variable.same_as(symbol) else variable

    bound: tirx.PrimFunc = tvm_ffi.structural_map(func, [(tirx.Var, bind)])
    return bound


def as_stock(func: tirx.PrimFunc) -> tvm.IRModule:
    """Return the module under which TVM's own databases know a function of a module."""
    if not (func.attrs and "global_symbol" in func.attrs):
        func = func.with_attr("global_symbol", "main")
    return tvm.IRModule({"main": func.with_attr("tirx.noalias", True)})


def _is_scheduled(func: tirx.PrimFunc) -> bool:
    if func.attrs and int(func.attrs.get("tirx.is_scheduled", 0) or 0):
        return True
    return bool(ir.find_all(func.body, ir.For, lambda x: x.thread_binding is not None))
