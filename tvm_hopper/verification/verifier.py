"""Verify a module in stages, from cheap to thorough, with one verdict.

1. launches: the host function, and launches that the runtime or driver would refuse;
2. synchronisation without values: the static check, and every interleaving of the roles;
3. simulation of chosen CTAs under several schedules;
4. indices of every CTA, without values: bounds, alignment, overlapping stores, covered outputs;
5. values: results of chosen CTAs, compared with the plain program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

from tvm_hopper.errors import HopperError
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.reference.evaluate import Reference
from tvm_hopper.schedule.attention.online import ONLINE
from tvm_hopper.schedule.origins import plain_of
from tvm_hopper.sim import Finding
from tvm_hopper.sim.cta_selection import Choice, choose_blocks, choose_requested
from tvm_hopper.sim.findings import finding
from tvm_hopper.sim.kernel_code import launch_findings, say_cluster, touched_tensors
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.launch.runtime_calls import TensorMapError
from tvm_hopper.sim.machine.machine import check_policy
from tvm_hopper.sim.protocol.check import explore_skeleton
from tvm_hopper.sim.protocol.given import given_integers
from tvm_hopper.static_check.sync import check_sync
from tvm_hopper.verification.case import Case
from tvm_hopper.verification.every_cta import check_indices, check_residency
from tvm_hopper.verification.launches import (
    BoundLaunch,
    bound_launches,
    computed_integers,
    ways_to_call,
)
from tvm_hopper.verification.lengths import draw_lengths, find_lengths
from tvm_hopper.verification.numbers import blank_memory, fill_random
from tvm_hopper.verification.program import Program, load
from tvm_hopper.verification.progress import ProgressLine
from tvm_hopper.verification.related import Related
from tvm_hopper.verification.report import Report, arranged, joined
from tvm_hopper.verification.schedules import Replay, Schedules
from tvm_hopper.verification.values import NOT_GIVEN, ValueCheck, ValueReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

RUNS = (
    ("eager", 0),
    ("on_wait", 0),
    ("lifo", 0),
    ("random", 1),
    ("random", 2),
    ("random", 3),
    ("starve:consumer", 0),
    ("starve:producer", 0),
)
EXPLORATION = 0.4  # largest share of the remaining time for interleavings of the roles
INDICES = 0.1  # least share of the budget for the indices of every CTA
VALUES = 0.2  # share of the budget kept for values once enough schedules ran
MIN_RUNS = 3  # schedules that must end within the budget for a verdict


@dataclass
class Found:
    """Findings of all stages, each broken rule once: as the first stage or run met it."""

    findings: dict[Any, Finding] = field(default_factory=dict)

    def add(self, found: Iterable[Finding]) -> None:
        """Add a finding that its rule and text identify."""
        for one in found:
            self.findings.setdefault((one.rule, one.message), one)

    def add_from_run(self, found: Iterable[Finding]) -> None:
        """Add the findings of a run; the same rule at the same statements is added once."""
        for one in found:
            self.findings.setdefault(self._key(one), one)

    def met(self, one: Finding) -> bool:
        """Return whether an earlier run met a finding."""
        return self._key(one) in self.findings

    @staticmethod
    def _key(one: Finding) -> Any:
        if one.rule == "DEADLOCK":  # for any waiting agents
            return one.rule
        # without the agent and the iteration
        return one.rule, one.buffer, tuple(text.partition(": ")[2] for text in one.statements)

    def add_of_all(self, found: Iterable[Finding]) -> None:
        """Add findings on all CTAs, unless a run has found the same rule at the same buffer."""
        met = {(one.rule, one.buffer) for one in self.findings.values()}
        self.add(one for one in found if (one.rule, one.buffer) not in met or not one.buffer)


@dataclass(frozen=True)
class Limits:
    """How much `verify` may do, and for which device.

    - `max_ctas`: a launch with more CTAs than this runs only chosen ones.
    - `budget_s`: seconds for the whole check: schedules that have not started or ended by then are
      listed as skipped; the report is incomplete if fewer than three ran, or if another stage had
      no time.
    - `num_sms`: multiprocessors of the device, for host code that queries them.
    - `progress`: whether stderr shows the current step after two seconds; None: if it is a
      terminal.
    """

    max_ctas: int = 8
    budget_s: float = 120.0
    num_sms: int = DEFAULT_NUM_SMS
    progress: bool | None = None

    def __post_init__(self) -> None:
        if type(self.max_ctas) is not int or self.max_ctas < 1:
            raise ValueError(f"max_ctas: found max_ctas={self.max_ctas!r}; need an int from 1")


class LimitKeywords(TypedDict, total=False):
    """`Limits` as keywords, for type checkers."""

    max_ctas: int
    budget_s: float
    num_sms: int
    progress: bool | None


def verify(
    ex_or_mod: Any,
    inputs: Mapping[str, Any] | None = None,
    runs: Sequence[tuple[str, int]] = RUNS,
    blocks: Sequence[tuple[int, ...]] | None = None,
    target: Any = None,
    entry: str | None = None,
    against: Any = None,
    **limits: Unpack[LimitKeywords],
) -> Report:
    """Check a module's synchronisation under several schedules, and its values; one verdict.

    Parameters
    ----------
    ex_or_mod : Schedule, IRModule, PrimFunc, or what `tvm.compile` returned in this process
        A module is lowered for `target` (default: the target in scope, else sm_90a).
    inputs : dict or None
        As for `simulate`; the rest out is filled with random numbers, except arguments that
        the kernel only writes. Tensors with strides or an offset of their own get some. Tensors
        that say how long loops are, as offsets of groups, are drawn in three ways, each checked.
    runs : sequence of (policy, seed)
        Schedules to run.
    blocks : list of (x, y, z) or None
        CTAs to run, which leaves the report incomplete unless they are all of the launch; None: all
        up to `max_ctas`, else chosen ones that stand for the others.
    target : Target, str or dict, optional
        For a module that is not lowered yet.
    entry : str, optional
        Name of the function to run; left out, the only one.
    against : IRModule, PrimFunc, Schedule, or False, optional
        The plain program, with the kernel's arguments in the same order: the kernel's output
        is compared with its results, on integers and on normal numbers (arguments in
        `inputs` stay as they are). None: the module before the first schedule helper `hs.*`, where
        this process knows it (`schedule/origins.py`); False: values are not compared.
    max_ctas : int
        CTAs of a launch that may run before some are chosen. Default: 8.
    budget_s : float
        Seconds for all stages; stages that do not fit leave the report incomplete. Default: 120.
    num_sms : int
        Multiprocessors of the assumed device.
    progress : bool, optional
        Whether to show progress on stderr after two seconds; None: if it is a terminal.

    Returns
    -------
    report : Report
        `verdict` is the worst of "clean", "review", "incomplete" and "error"; `findings` has the
        reasons, and `values` what was compared (nothing without a plain program). A function that
        launches other kernels if it is given an allocator is checked both ways.

    Raises
    ------
    ValueError
        An argument is illegal, there is nothing to run, or `against` has other parameters.
    PlainProgramError
        `against` has a statement whose meaning is unknown, for example an opaque call.
    """
    _check_runs(runs)
    request = _Request(inputs or {}, runs, blocks, Limits(**limits))
    end = time.monotonic() + request.limits.budget_s
    program = load(ex_or_mod, target, entry)
    with ProgressLine(request.limits.progress) as line:
        values, _ = complete(program.arguments, request.inputs, blank_memory)
        reports = []
        try:
            ways = ways_to_call(program, values, request.limits.num_sms)
            plain = _PlainProgram.find(ex_or_mod, program, against)
            calls = [(way, drawn) for way in ways for drawn in plain.lengths(values, request)]
            for number, (allocator, drawn) in enumerate(calls):
                plain = _PlainProgram.find(ex_or_mod, program, against)
                now = time.monotonic()
                until = now + (end - now) / (len(calls) - number)
                one = replace(request, inputs={**drawn, **request.inputs})
                reports.append(_check_call(plain, program, one, allocator, line, until))
        except TensorMapError as error:  # the driver refuses it: no kernel is launched
            return Report((finding("TENSOR_MAP", str(error)),), (), ())
        except MemoryError as error:
            text = f"not checked: {error or 'the tensors'} and more do not fit into memory"
            return Report((finding("INCOMPLETE", text, hint="verify a smaller shape"),), (), ())
    return joined(reports)


@dataclass(frozen=True)
class _Request:
    """Arguments of `verify`."""

    inputs: Mapping[str, Any]
    runs: Sequence[tuple[str, int]]
    blocks: Sequence[tuple[int, ...]] | None
    limits: Limits


def _check_call(
    plain: _PlainProgram,
    program: Program,
    request: _Request,
    allocator: bool,
    line: ProgressLine,
    end: float,
) -> Report:
    """Check one way to call a program, stage by stage, until a deadline of the monotonic clock."""
    num_sms = request.limits.num_sms
    values, missing = complete(program.arguments, request.inputs, blank_memory)
    launches = bound_launches(program, values, num_sms, allocator)
    refused = [y for x in launches for y in launch_findings(x.func, x.setup, x.num_sms)]
    if any(one.severity == "error" for one in refused):  # the runtime refuses it
        return Report(tuple(refused), (), ())
    found = Found()
    related = Related.of_several(launches, values, request.limits.max_ctas)
    choices = _choose(launches, request, related)
    for choice in choices:
        found.add(choice.findings())

    def left() -> float:
        return end - time.monotonic()

    line.text = "every interleaving of the roles"
    known = {name: value for name, value in values.items() if name not in missing}
    skeletons = _explore(program, launches, known, found, EXPLORATION * left())
    left_alone = plain.left_alone([argument.name for argument in program.arguments])
    outputs = _outputs(launches, choices, missing, left_alone)
    case = Case(
        *(program, request.inputs, values, outputs, launches, choices, related, num_sms, allocator)
    )

    def fill() -> None:
        legal = plain.legal_indices(values)
        fill_random(values, program.arguments, set(missing) - set(outputs), legal)

    schedules = Schedules(case, fill)
    kept = 0.0 if plain.reference is None else VALUES * request.limits.budget_s
    done = _run_schedules(schedules, request, found, line, left, kept)
    line.text = "CTAs one after another"
    found.add(check_residency(case, left))
    line.text = "indices of every CTA"
    time_left = max(left(), INDICES * request.limits.budget_s)
    of_all, covered = check_indices(case, not schedules.cuts, time_left)
    found.add_of_all(of_all)
    clusters = [y for x in launches for y in say_cluster(x.func, x.setup, num_sms)]
    if plain.reference is not None:
        line.text = "values"
        check = ValueCheck(plain.reference, case, request.blocks is not None, schedules.steps)
        plain.report = check.run(end)
        found.add_from_run(check.findings)
    return Report(
        findings=arranged(found.findings.values()),
        runs=tuple(done),
        choices=tuple(choices),
        skeletons=tuple(skeletons),
        cuts=tuple(schedules.cuts),
        proven=(*clusters, *covered),
        values=plain.report,
        replay=Replay(case, schedules.chosen),
    )


def _choose(
    launches: Sequence[BoundLaunch], request: _Request, related: Related | None
) -> list[Choice]:
    """Choose the CTAs that run of each launch."""
    if request.blocks is not None:
        return [choose_requested(x.func, x.setup, request.blocks) for x in launches]
    return [
        choose_blocks(
            x.func, x.setup, request.limits.max_ctas, related.extra_keys[i] if related else ()
        )
        for i, x in enumerate(launches)
    ]


def _run_schedules(
    schedules: Schedules,
    request: _Request,
    found: Found,
    line: ProgressLine,
    left: Callable[[], float],
    kept: float,
) -> list[tuple[str, int, str]]:
    """Run as many schedules as there is time for; return the verdict of each.

    Once as many have run as a verdict needs, others leave `kept` seconds to later stages.
    """
    done: list[tuple[str, int, str]] = []
    ran = 0

    def left_for_runs() -> float:
        return left() - (kept if ran >= MIN_RUNS else 0.0)

    for number, (policy, seed) in enumerate(request.runs, 1):
        if left_for_runs() <= 0:
            done.append((policy, seed, "skipped"))
            continue
        line.text = f"{policy}({seed}), {number} of {len(request.runs)} schedules"
        result = schedules.run(policy, seed, left_for_runs, found.met)
        if result.out_of_budget:  # earlier findings are valid
            done.append((policy, seed, "skipped"))
            found.add_from_run(one for one in result.findings if one.severity == "error")
        else:
            ran += 1
            done.append((policy, seed, result.verdict))
            found.add_from_run(result.findings)
    if ran < min(MIN_RUNS, len(request.runs)):
        budget_s = request.limits.budget_s
        left_out = f"{ran} of {len(request.runs)} schedules ran within {budget_s} s"
        hint = "raise budget_s, or verify a smaller shape"
        found.add([finding("INCOMPLETE", left_out, hint=hint)])
    found.add(schedules.doubts)
    return done


@dataclass
class _PlainProgram:
    """The reference for values, if there is one.

    - `report`: the report on values as long as none was compared.
    """

    reference: Reference | None
    report: ValueReport

    def legal_indices(self, values: Mapping[str, Any]) -> dict[str, int]:
        """Return how many integers from 0 an argument may hold that is an index."""
        if self.reference is None:
            return {}
        legal = self.reference.legal_indices(list(values.values()))
        return {name: legal[place] for place, name in enumerate(values) if place in legal}

    def lengths(self, values: Mapping[str, Any], request: _Request) -> list[dict[str, Any]]:
        """Return more inputs for each call: what says how long loops are, in several ways."""
        if self.reference is None:
            return [{}]
        known = self.reference.sizes(list(values.values()))
        found = find_lengths(self.reference.function, known)
        return draw_lengths(found, list(values), values, list(request.inputs))

    def left_alone(self, names: Sequence[str]) -> set[str]:
        """Return which of a kernel's arguments the program stores nothing to."""
        if self.reference is None:
            return set()
        written = set(self.reference.output_places)
        return {name for place, name in enumerate(names) if place not in written}

    @staticmethod
    def find(ex_or_mod: Any, program: Program, against: Any) -> _PlainProgram:
        """Take the given plain program, or the one that this process knows."""
        if against is False:
            return _PlainProgram(None, ValueReport(False, "not checked: against=False"))
        name = str((program.host.attrs or {}).get("global_symbol", "main"))
        rounds = {
            "tf32": program.multiplies("tf32"),
            "float8": program.multiplies("fp8"),
            "moved_roundings": ONLINE in (program.host.attrs or {}),
        }
        if against is not None:
            return _PlainProgram(Reference(against, name, **rounds), ValueReport(False, NOT_GIVEN))
        known = plain_of(ex_or_mod)
        if known is None:
            return _PlainProgram(None, ValueReport(False, NOT_GIVEN))
        try:
            return _PlainProgram(Reference(known, name, **rounds), ValueReport(False, NOT_GIVEN))
        except HopperError as error:
            return _PlainProgram(None, ValueReport(False, f"not checked: {error}"))


def _check_runs(runs: Sequence[tuple[str, int]]) -> None:
    if not runs:
        raise ValueError("runs: found none; need at least one (policy, seed)")
    for policy, _ in runs:
        check_policy(policy)


def _outputs(
    launches: Sequence[BoundLaunch],
    choices: Sequence[Choice],
    missing: Sequence[str],
    left_alone: set[str],
) -> list[str]:
    """Return the tensors that hold nothing before the run: not given, and written before read.

    One that no kernel touches is an output that was forgotten, unless the plain program leaves it
    alone, too.
    """
    written = set().union(*(choice.only_written for choice in choices))
    known: set[str] = set()
    for launch in launches:
        known = known.union(*touched_tensors(launch.func, launch.setup["params"]))
    return [x for x in missing if x in written or (x not in known and x not in left_alone)]


def _explore(
    program: Program,
    launches: Sequence[BoundLaunch],
    known: Mapping[str, Any],
    found: Found,
    budget_s: float,
) -> list[str]:
    """Check each kernel's synchronisation without values: statically, and every interleaving.

    Where it follows from integers in memory, only those of `known` tensors are looked at, and what
    earlier kernels compute from these alone.
    """
    stored = {
        name
        for launch in launches
        for name in touched_tensors(launch.func, launch.setup["params"])[0]
    }
    texts = []
    end = time.monotonic() + budget_s
    for number, launch in enumerate(launches):
        func = launch.func
        made = computed_integers(launches, number, known)
        known, stored = {**known, **made}, stored - made.keys()
        given = given_integers(func, launch.setup["params"], known, stored)
        left = max(end - time.monotonic(), 0.0)
        report = explore_skeleton(func, program.host, given=given, budget_s=left)
        found.add(check_sync(func, program.host, given=given))
        found.add(report.findings)
        name = func.attrs["global_symbol"]
        texts.append(f"{name}: {report.states} states ({report.covers})")
    return list(dict.fromkeys(texts))
