"""Launches of a program, and one run under one scheduling policy."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm import ir

from tvm_hopper.errors import VerifyError
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.sim import Finding, Result, run_host, run_kernel
from tvm_hopper.sim.ending import uncovered
from tvm_hopper.sim.findings import finding
from tvm_hopper.sim.kernel_code import touched_tensors
from tvm_hopper.sim.launch.host import ALLOCATOR, Launch
from tvm_hopper.sim.launch.overlap import LaunchesInFlight
from tvm_hopper.sim.launch.tensors import Pointer, Workspace, find_shared_memory, place
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.leave_out import of_kernel
from tvm_hopper.sim.options import DEFAULT_OPTIONS, RunOptions, Shortcuts
from tvm_hopper.sim.timeline.events import TimelineEvent
from tvm_hopper.sim.tir import PROMISED, nodes_in
from tvm_hopper.verification.program import Program

Rest = Callable[[int, str], np.ndarray | None]  # (launch, tensor) -> bytes


@dataclass(frozen=True)
class BoundLaunch:
    """One launch of the host function with the kernel that it names.

    - `func` (tvm.tirx.PrimFunc): the device function.
    - `setup` (dict): params, grid, block, cluster, dyn_smem_bytes: see `Launch.bind`.
    - `workspaces`: workspaces that the host function allocated for its kernels, by name.
    - `num_sms`: multiprocessors of the device.
    - `promised`: arguments that no launch before the call in its stream writes.
    """

    func: Any
    setup: dict[str, Any]
    workspaces: Mapping[str, Workspace] = field(default_factory=dict)
    num_sms: int = DEFAULT_NUM_SMS
    promised: frozenset[str] = frozenset()

    @property
    def tensors(self) -> set[str]:
        """Names of the tensors that the launch is given."""
        params = self.setup["params"].values()
        return {v.tensor for v in params if isinstance(v, (Pointer, TensorMapArg))}


def bound_launches(
    program: Program, values: Mapping[str, Any], num_sms: int, allocator: bool = False
) -> list[BoundLaunch]:
    """Run the host function on arguments in order, and bind its launches."""
    launches = run_host(program.host, values, num_sms, program.arch, allocator)
    return [_bind(program, launch, num_sms) for launch in launches]


def ways_to_call(program: Program, values: Mapping[str, Any], num_sms: int) -> tuple[bool, ...]:
    """Return the ways to call: without an allocator, and with one if that launches other kernels.

    Workspaces between kernels are the same memory, whether the caller or an allocator provides it.
    """
    if not any(text.value == ALLOCATOR for text in nodes_in(program.host.body, ir.StringImm)):
        return (False,)
    without, having = (
        [x.kernel for x in run_host(program.host, values, num_sms, program.arch, way)]
        for way in (False, True)
    )
    return (False,) if without == having else (False, True)


def _bind(program: Program, launch: Launch, num_sms: int) -> BoundLaunch:
    func = program.kernels.get(launch.kernel)
    if func is None:
        raise VerifyError(
            f"launch of {launch.kernel}: found kernels {sorted(program.kernels)}; need its TIR"
        )
    return BoundLaunch(func, launch.bind(func), launch.workspaces, num_sms, _promised(program))


def _promised(program: Program) -> frozenset[str]:
    places = (program.host.attrs or {}).get(PROMISED, ())
    return frozenset(program.arguments[int(place)].name for place in places)


def run_launches(
    launches: Sequence[BoundLaunch],
    values: Mapping[str, Any],
    outputs: Sequence[str],
    blocks: Sequence[Any],
    options: RunOptions = DEFAULT_OPTIONS,
    shortcuts: Mapping[str, Shortcuts] | None = None,
    rest: Rest | None = None,
) -> Result:
    """Run launches in order, each on the memory that earlier ones left.

    - `values` (dict): every argument of the entry, in order.
    - `outputs`: arrays that hold nothing before the run.
    - `blocks` (sequence): for each launch a list of (x, y, z), the CTAs to run, or None for all.
      The tensors that a partly run launch stores to count as written, and hold zeros elsewhere: all
      bytes, or those that `rest` returns.
    - `options`: `budget_s` is the time for all launches. The writer of an element is the last
      launch that wrote it.
    - `shortcuts`: parts that the run of each kernel leaves out; None: nothing. If that fails for
      one launch, the result states this alone.
    - `rest`: returns, for a launch's number, the bytes of a tensor that its CTAs which do not run
      store to, or None if unknown.
    - returns: arguments after the last launch; findings and steps of all.
    """
    arrays = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
    memory = _Memories(arrays, set(outputs))
    total = Result({}, policy=options.policy, seed=options.seed)
    in_flight = LaunchesInFlight(arrays.keys() - (launches[0].promised if launches else ()))
    end = None if options.budget_s is None else time.monotonic() + options.budget_s
    for number, (launch, chosen) in enumerate(zip(launches, blocks, strict=True)):
        followed = number < len(launches) - 1  # by launches that may read its output
        touched = touched_tensors(launch.func, launch.setup["params"])
        given = memory.before(launch)
        of_launch = replace(
            options,
            blocks=chosen,
            outputs=sorted(launch.tensors & memory.empty),
            written=memory.written
            if chosen is None or followed
            else MappingProxyType(memory.written),
            budget_s=None if end is None else max(end - time.monotonic(), 0.0),
            shortcuts=of_kernel(shortcuts or {}, launch.func),
            num_sms=launch.num_sms,
            unfinished=in_flight.begin(launch.func, touched[0]),
        )
        shape = {name: x for name, x in launch.setup.items() if name != "params"}
        result = run_kernel(
            launch.func, {**given, **launch.setup["params"]}, **shape, options=of_launch
        )
        if result.shortcut_failed:
            return result
        name = str(launch.func.attrs["global_symbol"])
        in_flight.note(name, *touched, result.waited_for_grids, result.next_began)
        left_bytes = None if rest is None else functools.partial(rest, number)
        memory.after(launch, result, chosen is None, left_bytes)
        _add(total, result, number)
        if total.stopped:  # later launches would read wrong values
            break
    total.outputs = {name: memory.arrays[name] for name in arrays}
    if launches and not total.stopped:
        total.findings += _of_run(total, "OUTPUT_COVERAGE", memory.holes(set(outputs)))
    shared = find_shared_memory(arrays, memory.stored)
    total.findings += _of_run(total, "INCOMPLETE", map(_in_common, shared))
    return total


def computed_integers(
    launches: Sequence[BoundLaunch], number: int, known: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the workspaces of integers that a launch reads and an earlier one computed.

    - `number`: which of the launches reads them.
    - `known` (dict): tensors that are given: all that the earlier launch may read.
    """
    touched = [touched_tensors(x.func, x.setup["params"]) for x in launches]
    found: dict[str, np.ndarray] = {}
    for name, workspace in launches[number].workspaces.items():
        makers = [i for i, (stored, _) in enumerate(touched) if name in stored]
        if workspace.array().dtype.kind not in "iu" or makers == [] or makers[-1] >= number:
            continue
        (stored, loaded), *others = (touched[i] for i in makers)
        if others or name not in touched[number][1] or (loaded - stored) - known.keys():
            continue
        run = run_launches([launches[makers[0]]], {**known, name: workspace.array()}, [], [None])
        if not run.stopped:
            found[name] = run.outputs[name]
    return found


def _in_common(tensors: tuple[str, str]) -> dict[str, Any]:
    stored, other = tensors
    text = f"{stored}, which kernels store to, has memory in common with {other}"
    return {"message": text, "hint": "give each tensor memory of its own"}


def _of_run(result: Result, rule: str, found: Iterable[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """Return findings of one rule, under the policy of a run."""
    policy, seed = result.policy, result.seed
    return tuple(finding(rule, policy=policy, seed=seed, **one) for one in found)


def _add(total: Result, result: Result, launch: int) -> None:
    """Add the results of one launch's run to those of earlier launches."""
    total.events += _of_launch(result.events, launch, len(total.findings))
    total.findings += result.findings
    total.steps += result.steps
    total.blocks += result.blocks
    total.events_left_out += result.events_left_out
    total.cuts = tuple(dict.fromkeys((*total.cuts, *result.cuts)))
    for name, found in result.writers.items():
        total.writers[name] = (*total.writers.get(name, ()), *found)
    total.stopped, total.out_of_budget = result.stopped, result.out_of_budget
    total.ended_early = result.ended_early


def _of_launch(events: list[TimelineEvent], launch: int, findings: int) -> list[TimelineEvent]:
    """Return the events of a launch; `findings` were made by earlier ones."""
    if not launch:
        return events
    return [
        e._replace(launch=launch, number=e.number + findings * (e.kind == "finding"))
        for e in events
    ]


class _Memories:
    """The tensors of one run, and which of their bytes hold something.

    - `empty`: tensors that hold only values that launches wrote.
    - `written` (dict): one flag for each byte of such a tensor.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], empty: set[str]) -> None:
        self.arrays = dict(arrays)
        self.empty = set(empty)
        self.written: dict[str, np.ndarray] = {}
        self.stored: set[str] = set()
        self.loaded: set[str] = set()

    def before(self, launch: BoundLaunch) -> dict[str, np.ndarray]:
        """Return the arguments of a launch, with the workspaces that it is the first to use."""
        for name, workspace in launch.workspaces.items():
            if name not in self.arrays:
                self.arrays[name] = workspace.array()
                self.empty.add(name)
        return {name: self.arrays[name] for name in launch.tensors}

    def after(
        self,
        launch: BoundLaunch,
        result: Result,
        whole: bool,
        rest: Callable[[str], np.ndarray | None] | None = None,
    ) -> None:
        """Keep the memory that a launch left; `rest`: bytes that its other CTAs would write."""
        stored, loaded = touched_tensors(launch.func, launch.setup["params"])
        self.stored |= stored
        self.loaded |= loaded
        self.arrays.update(result.outputs)
        if whole:
            return
        for name in stored & self.empty:
            flags, array = self.written.pop(name, None), self.arrays[name]
            others = rest(name) if rest is not None and name in launch.workspaces else None
            if others is not None and flags is not None:
                self.written[name] = flags | others
                if array.flags.writeable:  # not of a run without values
                    array.view(np.uint8).reshape(-1)[others & ~flags] = 0
                continue
            self.empty.discard(name)
            if flags is not None and array.flags.writeable:  # not of a run without values
                array[~place(array).bytes_among(flags).all(axis=-1)] = 0

    def holes(self, outputs: set[str]) -> list[dict[str, Any]]:
        """Return the outputs that no launch wrote, as arguments of a finding."""
        found = [
            uncovered(name, place(self.arrays[name]), flags, name in self.stored)
            for name, flags in self.written.items()
            if name in outputs
        ]
        found += [
            {"message": f"{n}: no statement stores to it, or loads from it", "buffer": n}
            for n in sorted(outputs - self.stored - self.loaded)
            if n in self.arrays and self.arrays[n].size
        ]
        return [hole for hole in found if hole]
