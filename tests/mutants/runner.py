"""Draw mutants, judge each in a worker, and say what became of it."""

import functools
import multiprocessing
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi

from tvm_hopper.simulation import Program

from .equivalence import reason
from .host_sites import changed_host, host_sites
from .judging import Outcome, judge, right_outputs
from .kernels import MAKERS, MAKERS_OF_LAUNCHES, MAKERS_OF_ROWS, MAKERS_OF_TURNS, Subject, subject
from .places import changed_place, place_sites
from .recording import Trace, record
from .sites import Site, changed_device, device_sites

LIMIT_S = 60  # of one mutant: a judge that takes longer hangs
KILLED, REVIEW, EQUIVALENT, SURVIVOR = "killed", "review", "equivalent", "survivor"
CRASH, NO_PROGRAM = "crash", "no program"


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant.

    Attributes
    ----------
    kind : str
        KILLED or REVIEW (a judge objected), EQUIVALENT (by the rule in `why`), SURVIVOR, CRASH (of
        a judge), or NO_PROGRAM: TVM refuses to build it, or it is the kernel itself.
    judge, why : str
        The first judge that objected, and what it said.
    """

    kernel: str
    site: Site
    kind: str
    judge: str = ""
    why: str = ""
    seconds: float = 0.0


OPERATORS = ("changes", "places", "launches", "turns")


def sites_of(name: str, operators: str = OPERATORS[0]) -> list[Site]:
    """List every change of one kernel by one of the sets of operators."""
    kernel = subject(name)
    if operators != OPERATORS[0]:
        return place_sites(kernel.device)
    host = host_sites(kernel.program.host, set(kernel.program.kernels))
    return device_sites(kernel.device) + host


def names_of(operators: str) -> list[str]:
    """Name the kernels that a set of operators is for."""
    rows = MAKERS_OF_ROWS if operators == "places" else ()
    several = {"launches": MAKERS_OF_LAUNCHES, "turns": MAKERS_OF_TURNS}
    return list(several.get(operators, [*MAKERS, *rows]))


def draw(
    count: int, seed: int, names: list[str] | None = None, operators: str = OPERATORS[0]
) -> list[tuple[str, Site]]:
    """Draw mutants, as many of each class as it has places, at least one; 0: all of them."""
    names = names or names_of(operators)
    everything = [(name, site) for name in names for site in sites_of(name, operators)]
    if not count or count >= len(everything):
        return everything
    rng = random.Random(seed)
    classes: dict[str, list[tuple[str, Site]]] = {}
    for one in everything:
        classes.setdefault(one[1].kind, []).append(one)
    chosen = []
    for members in classes.values():
        share = max(1, round(count * len(members) / len(everything)))
        chosen += rng.sample(members, min(share, len(members)))
    left = [x for x in everything if x not in set(chosen)]
    chosen += rng.sample(left, max(0, count - len(chosen)))
    rng.shuffle(chosen)
    return chosen[:count]


def build(kernel: Subject, site: Site) -> Program | None:
    """Return the mutant; None if TVM refuses it or it is the kernel itself."""
    func, kernels, host = kernel.device, kernel.program.kernels, kernel.program.host
    try:
        if site.function == "host":
            changed, old = changed_host(host, site), host
        elif site.function == "places":
            changed, old = changed_place(func, site), func
        else:
            changed, old = changed_device(func, site), func
    except (TypeError, ValueError, RuntimeError):
        return None
    if tvm_ffi.structural_equal(changed, old):
        return None
    if site.function == "host":
        return Program(changed, kernels)
    return Program(host, {**kernels, kernel.kernel: changed})


@functools.cache
def _right(name: str) -> tuple[dict[str, np.ndarray], Trace]:
    kernel = subject(name)
    return right_outputs(kernel), record(kernel.program, kernel.inputs)


class _TooLongError(BaseException):
    """A judge takes too long; no `except Exception` holds it."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def end(*_: Any) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def examine(mutant: tuple[str, Site], limit: float = LIMIT_S) -> Verdict:
    """Build and judge one mutant."""
    name, site = mutant
    start = time.monotonic()
    try:
        with _limited(limit):
            kind, by, why = _examine(subject(name), site)
    except _TooLongError:
        kind, by, why = CRASH, "", f"no verdict after {limit:g} s"
    return Verdict(name, site, kind, by, why, time.monotonic() - start)


def _examine(kernel: Subject, site: Site) -> tuple[str, str, str]:
    program = build(kernel, site)
    if program is None:
        return NO_PROGRAM, "", ""
    outputs, trace = _right(kernel.name)
    outcome: Outcome = judge(kernel, program, outputs)
    why = ", ".join(outcome.rules)
    if outcome.judge == "crash":
        return CRASH, "", why
    if outcome.reported:
        return (REVIEW if outcome.severity == "review" else KILLED), outcome.judge, why
    rule = reason(trace, record(program, kernel.inputs))
    return (EQUIVALENT, "", rule) if rule else (SURVIVOR, "", "")


def examine_all(mutants: list[tuple[str, Site]], jobs: int) -> Iterator[Verdict]:
    """Judge mutants in worker processes, in any order."""
    if jobs == 1:
        yield from map(examine, mutants)
        return
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs) as pool:
        yield from pool.imap_unordered(examine, mutants, chunksize=8)
