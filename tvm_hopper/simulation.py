"""Run and judge a module without a GPU: `simulate`, `verify` and the shell command.

result = tvm_hopper.simulate(ex, {"A": a, "B": b})      # numpy in, numpy out
report = tvm_hopper.verify(ex)                          # policies, seeds, chosen CTAs: one verdict
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvm_hopper.errors import HopperError, VerifyError
from tvm_hopper.facts.arch import SM_90A, Arch
from tvm_hopper.facts.devices import DEFAULT_NUM_SMS
from tvm_hopper.requests.kernel_file import load_kernel
from tvm_hopper.sim import Finding, Result, run_host, run_kernel, worst
from tvm_hopper.sim.cta_selection import Choice, choose_asked, choose_blocks
from tvm_hopper.sim.ending import uncovered
from tvm_hopper.sim.findings import finding
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.launch.host import Launch
from tvm_hopper.sim.launch.runtime_calls import TensorMapError
from tvm_hopper.sim.launch.signature import Argument, signature
from tvm_hopper.sim.launch.tensors import Pointer, place
from tvm_hopper.sim.launch.tma import TensorMapArg
from tvm_hopper.sim.machine.machine import check_policy
from tvm_hopper.sim.run import launch_findings, touched_tensors
from tvm_hopper.sim.tir import arch_of_kernel

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
MAX_INPUT_BYTES = 64 << 30  # of one array that `verify` makes up, before it is made
EXIT_CODES = {"clean": 0, "review": 3, "incomplete": 4, "error": 5}


@dataclass(frozen=True)
class Program:
    """The final functions of one module: one host entry, and its kernels by name."""

    host: Any
    kernels: Mapping[str, Any]

    @property
    def arguments(self) -> list[Argument]:
        """Arguments of the entry, in order."""
        return signature(self.host)

    @property
    def arch(self) -> Arch:
        """What the kernels are built for."""
        return next(map(arch_of_kernel, self.kernels.values()), SM_90A)


def _entry(host_module: Any, name: str | None) -> Any:
    entries = {}
    for gv, func in host_module.functions.items():
        if "calling_conv" in (func.attrs or {}) and int(func.attrs["calling_conv"]) == 1:
            entries[gv.name_hint] = func
    if name is None and len(entries) > 1:
        name = "main"
    if name is not None and name in entries:
        return entries[name]
    if len(entries) == 1 and name is None:
        return next(iter(entries.values()))
    raise ValueError(f"entry: found functions {sorted(entries)}; need one of them as `entry`")


def load(ex_or_mod: Any, target: Any = None, entry: str | None = None) -> Program:
    """Return the final functions of a module, lowered here, or of an executable built here."""
    import tvm
    from tvm import tirx

    if isinstance(ex_or_mod, Program):
        return ex_or_mod
    if isinstance(ex_or_mod, (tvm.IRModule, tirx.PrimFunc)):
        from tvm_hopper import pipeline

        if target is None:
            target = tvm.target.Target.current(allow_none=True) or {
                "kind": "cuda",
                "arch": SM_90A.name,
            }
        _check_scheduled(ex_or_mod)
        lowered: Any = pipeline.lower_final(ex_or_mod, target)
    else:
        from tvm_hopper.cuda_build import records

        lowered = records.lookup(ex_or_mod)
    kernels = {gv.name_hint: func for gv, func in lowered.device.functions.items()}
    return Program(_entry(lowered.host, entry), kernels)


def _check_scheduled(module: Any) -> None:
    """Refuse a module whose functions are split and packed already."""
    functions = module.functions.values() if hasattr(module, "functions") else [module]
    if any("calling_conv" in (func.attrs or {}) for func in functions):
        raise HopperError(
            "simulate: found a module that is lowered already; need the scheduled module, or what "
            "tvm.compile returned"
        )


def simulate(
    ex_or_mod: Any,
    inputs: Mapping[str, Any],
    policy: str = "on_wait",
    seed: int = 0,
    blocks: Sequence[tuple[int, ...]] | None = None,
    detect_races: bool = True,
    target: Any = None,
    entry: str | None = None,
    num_sms: int = DEFAULT_NUM_SMS,
) -> Result:
    """Run a module on numpy inputs, without a GPU.

    Parameters
    ----------
    ex_or_mod : IRModule, PrimFunc, or what `tvm.compile` returned in this process
        A module is lowered for `target` (default: the target in scope, else sm_90a).
    inputs : dict
        numpy arrays and scalars by argument name. A view is passed as a view, with its strides and
        its place in the array that it is a view of, whose other bytes must not be touched
        (OUT_OF_VIEW). Arguments left out are outputs: they hold nothing before the run; those with
        strides or an offset of their own are made as views.
    policy, seed : str, int
        How asynchronous operations are scheduled; see `tvm_hopper.sim.run_kernel`.
    blocks : list of (x, y, z) or None
        CTAs to run; None: all.
    detect_races : bool
        Also follow who knows of whose accesses; without it values alone are computed.
    target : Target, str or dict, optional
        For a module that is not lowered yet.
    entry : str, optional
        Name of the function to run; left out, the only one.
    num_sms : int
        Multiprocessors of the device, for host code that asks.

    Returns
    -------
    Result
        `outputs` holds every array argument after the run.

    Raises
    ------
    ValueError
        An argument of this function or of the module's own is illegal.
    """
    check_policy(policy)
    program = load(ex_or_mod, target, entry)
    values, missing = complete(program.arguments, inputs)
    return _run(program, values, missing, policy, seed, blocks, detect_races, num_sms)


def _run(
    program: Program,
    values: dict[str, Any],
    outputs: Sequence[str],
    policy: str,
    seed: int,
    blocks: Any,
    detect_races: bool,
    num_sms: int,
    budget_s: float | None = None,
) -> Result:
    launches = run_host(program.host, values, num_sms, program.arch)
    arrays = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
    findings: list[Finding] = []
    steps = 0
    ran: list[tuple[int, ...]] = []
    events: list[Any] = []
    written: dict[str, np.ndarray] = {}
    stopped = out_of_budget = False
    stored: set[str] = set()
    loaded: set[str] = set()
    for launch in launches:
        func, setup = _bind(program, launch)
        used = _tensors(setup["params"])
        for names, more in zip(
            (stored, loaded), touched_tensors(func, setup["params"]), strict=True
        ):
            names |= more
        result = run_kernel(
            func,
            {**{n: arrays[n] for n in used}, **setup["params"]},
            setup["grid"],
            setup["block"],
            setup["cluster"],
            setup["dyn_smem_bytes"],
            policy,
            seed,
            blocks,
            detect_races,
            sorted(used.intersection(outputs)),
            written,
            budget_s,
        )
        arrays.update(result.outputs)
        findings += result.findings
        steps += result.steps
        ran += result.blocks
        events += result.events
        stopped, out_of_budget = result.stopped, result.out_of_budget
        if stopped:  # what later launches would read is not what the program computes
            break
    if not stopped:
        holes = [uncovered(n, place(arrays[n]), flags, n in stored) for n, flags in written.items()]
        holes += [
            {"message": f"{n}: no statement stores to it, or loads from it", "buffer": n}
            for n in outputs
            if launches and n not in stored | loaded and n in arrays and arrays[n].size
        ]
        findings += [
            finding("OUTPUT_COVERAGE", policy=policy, seed=seed, **hole) for hole in holes if hole
        ]
    return Result(
        arrays, tuple(findings), policy, seed, steps, tuple(ran), events, stopped, out_of_budget
    )


def _bind(program: Program, launch: Launch) -> tuple[Any, dict[str, Any]]:
    func = program.kernels.get(launch.kernel)
    if func is None:
        raise VerifyError(
            f"launch of {launch.kernel}: found kernels {sorted(program.kernels)}; need its TIR"
        )
    return func, launch.bind(func)


def _tensors(params: Mapping[str, Any]) -> set[str]:
    return {v.tensor for v in params.values() if isinstance(v, (Pointer, TensorMapArg))}


# -- verify ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """Verdict of a module over several policies and seeds.

    Attributes
    ----------
    findings : tuple[Finding, ...]
        Each broken rule once, from the first run that met it.
    runs : tuple[tuple[str, int, str], ...]
        (policy, seed, verdict) of every run.
    choices : tuple[Choice, ...]
        Which CTAs of each launch ran, and why that is enough (or not).
    skeletons : tuple[str, ...]
        What the exploration of every interleaving of each kernel's roles covered.
    """

    findings: tuple[Finding, ...]
    runs: tuple[tuple[str, int, str], ...]
    choices: tuple[Choice, ...]
    skeletons: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """One of clean < review < incomplete < error."""
        return worst(self.findings)

    def require_clean(self) -> Report:
        """Return self, or raise `VerifyError` with every finding."""
        if self.verdict != "clean":
            raise VerifyError(f"verification is {self.verdict}, need clean:\n{self}")
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "verdict": self.verdict,
            "findings": [asdict(f) for f in self.findings],
            "runs": [list(run) for run in self.runs],
            "ctas": [str(choice) for choice in self.choices],
            "skeletons": list(self.skeletons),
        }

    def __str__(self) -> str:
        """Print verdict, coverage and findings."""
        lines = [f"verdict: {self.verdict}"]
        lines += [f"ran {choice}" for choice in self.choices]
        lines += [f"explored {text}" for text in self.skeletons]
        lines.append("under " + ", ".join(f"{p}({s}): {v}" for p, s, v in self.runs))
        return "\n".join([*lines, *map(str, self.findings)])


def _random_values(argument: Argument, shape: tuple[int, ...]) -> np.ndarray:
    from tvm_hopper.sim.tir import numpy_dtype

    if math.prod(shape) * 8 > MAX_INPUT_BYTES:
        raise ValueError(
            f"inputs: found {argument.name} of shape {shape}; need it from the caller above "
            f"{MAX_INPUT_BYTES >> 30} GiB"
        )
    rng = np.random.default_rng(len(argument.name) + math.prod(shape) % 1009)
    dtype = numpy_dtype(argument.dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def verify(
    ex_or_mod: Any,
    inputs: Mapping[str, Any] | None = None,
    runs: Sequence[tuple[str, int]] = RUNS,
    blocks: Sequence[tuple[int, ...]] | None = None,
    target: Any = None,
    entry: str | None = None,
    max_ctas: int = 8,
    budget_s: float = 120.0,
    num_sms: int = DEFAULT_NUM_SMS,
) -> Report:
    """Judge the synchronisation of a module under several schedules; one verdict.

    Parameters
    ----------
    ex_or_mod : IRModule, PrimFunc, or what `tvm.compile` returned in this process
        A module is lowered for `target` (default: the target in scope, else sm_90a).
    inputs : dict or None
        As for `simulate`; what is left out is filled with random numbers, except arguments that
        the kernel only writes. Tensors with strides or an offset of their own get some.
    runs : sequence of (policy, seed)
        Schedules to run.
    blocks : list of (x, y, z) or None
        CTAs to run, which leaves the report incomplete unless they are all of the launch; None: all
        up to `max_ctas`, else chosen ones that stand for the others.
    budget_s : float
        Seconds for all schedules: what is not begun or not ended by then is listed as skipped, and
        the report is incomplete if fewer than three ran.
    num_sms : int
        Multiprocessors of the device, for host code that asks.
    target : Target, str or dict, optional
        For a module that is not lowered yet.
    entry : str, optional
        Name of the function to run; left out, the only one.
    max_ctas : int
        How many CTAs of a launch may run before some are chosen.

    Returns
    -------
    report : Report
        `verdict` is the worst of "clean", "review", "incomplete" and "error"; `findings` says why.

    Raises
    ------
    ValueError
        An argument is illegal, or there is nothing to run.
    """
    start = time.monotonic()
    if not runs:
        raise ValueError("runs: found none; need at least one (policy, seed)")
    for policy, _ in runs:
        check_policy(policy)
    if type(max_ctas) is not int or max_ctas < 1:
        raise ValueError(f"max_ctas: found max_ctas={max_ctas!r}; need an int from 1")
    program = load(ex_or_mod, target, entry)
    values, missing = complete(program.arguments, inputs or {}, _random_values)
    try:
        host = run_host(program.host, values, num_sms, program.arch)
        launches = [_bind(program, launch) for launch in host]
    except TensorMapError as error:  # the driver refuses it: no kernel is launched
        return Report((finding("TENSOR_MAP", str(error)),), (), ())
    refused = [found for func, setup in launches for found in launch_findings(func, setup)]
    if any(found.severity == "error" for found in refused):  # the runtime refuses it
        return Report(tuple(refused), (), ())
    choices = []
    written: set[str] = set()
    for func, setup in launches:
        choice = (
            choose_blocks(func, setup, max_ctas)
            if blocks is None
            else choose_asked(func, setup, blocks)
        )
        choices.append(choice)
        written |= choice.only_written
    known = set().union(*(s for f, p in launches for s in touched_tensors(f, p["params"])))
    outputs = [name for name in missing if name in written or name not in known]
    findings: dict[Any, Finding] = {}
    for choice in choices:
        for found in choice.findings():
            findings.setdefault((found.rule, found.message), found)
    skeletons = []
    for name in dict.fromkeys(choice.kernel for choice in choices):
        explored, text = _explore(program, name)
        skeletons.append(text)
        for found in explored:
            findings.setdefault((found.rule, found.message), found)
    done = []
    for policy, seed in runs:
        if time.monotonic() - start > budget_s:
            done.append((policy, seed, "skipped"))
            continue
        chosen = choices[0].blocks if len(choices) == 1 and not choices[0].everything else None
        left = max(start + budget_s - time.monotonic(), 0.1)
        result = _run(program, values, outputs, policy, seed, chosen, True, num_sms, left)
        if result.out_of_budget:  # what it found before is true
            done.append((policy, seed, "skipped"))
            for found in result.findings:
                if found.severity == "error":
                    findings.setdefault((found.rule, found.buffer, found.statements), found)
            continue
        done.append((policy, seed, result.verdict))
        for found in result.findings:
            findings.setdefault((found.rule, found.buffer, found.statements), found)
    ran = sum(verdict != "skipped" for _, _, verdict in done)
    if ran < min(3, len(runs)):
        left_out = finding(
            "INCOMPLETE",
            f"{ran} of {len(runs)} schedules ran within {budget_s} s",
            hint="raise budget_s, or verify a smaller shape",
        )
        findings[left_out.rule, left_out.message] = left_out
    return Report(tuple(findings.values()), tuple(done), tuple(choices), tuple(skeletons))


def _explore(program: Program, name: str) -> tuple[list[Finding], str]:
    """Check one kernel's synchronisation without values: statically, and in every interleaving."""
    from tvm_hopper.sim.protocol.check import explore_skeleton
    from tvm_hopper.static_check.sync import check_sync

    func = program.kernels[name]
    report = explore_skeleton(func, program.host)
    findings = [*check_sync(func, program.host), *report.findings]
    return findings, f"{name}: {report.states} states ({report.covers})"


# -- shell ----------------------------------------------------------------------------------------


def verify_command(arguments: argparse.Namespace) -> int:
    """Verify the kernel that a Python file makes; the exit code tells the verdict."""
    report = verify(
        load_kernel(*arguments.kernel),
        target=arguments.target,
        entry=arguments.entry,
        max_ctas=arguments.max_ctas,
        budget_s=arguments.budget,
    )
    print(json.dumps(report.to_json(), indent=1) if arguments.json else report)
    return EXIT_CODES[report.verdict]
