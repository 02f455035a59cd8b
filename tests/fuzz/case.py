"""What a generator makes: a program as text, the statements that schedule it, and what to expect.

All of it is text that a person can read, and what the judge runs is what a reproducer prints.
"""

import re
from dataclasses import dataclass, field
from typing import Any

TARGET = "nvidia/nvidia-h200"
BUILD = f'ex = tvm.compile(mod, target="{TARGET}")'


@dataclass(frozen=True)
class View:
    """How a tensor lies in memory, in elements: a part of a larger allocation."""

    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Program:
    """A module as TVMScript.

    Attributes
    ----------
    text : str
        One module with the function "main".
    compact : str
        The same program over tensors without strides and offsets; empty where `text` has none.
    extents : dict
        Values of symbolic extents and of scalar arguments.
    fills : dict
        Arguments that are not filled with integers from -2 to 2: name to an expression of numpy's
        `rng` and of `shape`.
    views : dict
        Arguments that lie in a larger allocation.
    exact : bool
        Every value is an integer that each type on the way holds: results agree bit for bit.
    rounds : str
        Where it is not exact, the coarsest type that a value behind the product is rounded to.
    must_refuse, must_note : str
        Why no kernel can be right; why `explain` has to mention something.
    untrue : tuple of str
        Patterns of what no message about this program can truly say.
    """

    text: str
    compact: str = ""
    extents: dict[str, int] = field(default_factory=dict)
    fills: dict[str, str] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    exact: bool = True
    rounds: str = "float32"
    must_refuse: str = ""
    must_note: str = ""
    untrue: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One statement of the schedule.

    `asks` is what it requests of the kernel, in the words of `explain`; `must_refuse` says why it
    cannot be served: by this call, or where it is none of ours, by the build.
    """

    text: str
    asks: dict[str, Any] = field(default_factory=dict)
    must_refuse: str = ""

    @property
    def is_ours(self) -> bool:
        """Tell a call of this package from one of TVM's primitives."""
        return bool(re.search(r"\b(hs|tvm_hopper)\.\w+\(|PassContext\(", self.text))


@dataclass(frozen=True)
class Case:
    """One program, its schedule, its build, and how it is judged.

    Attributes
    ----------
    steps : tuple of Step
        Run in order with `sch` in scope; `mod` is what is built.
    build : str
        The statement that makes `ex` out of `mod`.
    after : tuple of Step
        Run behind the build, with `ex` in scope.
    kernels : int
        Kernels of ours that are asked for.
    evidence : str
        What the CUDA text of each has to mention.
    judged_at_build : str
        Why a refusal by the build is not late: nothing before it could know.
    policy : str
        Schedule of the simulated asynchronous operations.
    verify, cubin : bool
        Also `tvm_hopper.verify`; also the CUDA compiler and the judge of its log.
    """

    program: Program
    steps: tuple[Step, ...]
    build: str = BUILD
    after: tuple[Step, ...] = ()
    kernels: int = 1
    evidence: str = "wgmma"
    judged_at_build: str = ""
    policy: str = "on_wait"
    verify: bool = False
    cubin: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a case came to: one class of `judge.CLASSES`, where, and what was read."""

    kind: str
    phase: str = ""
    text: str = ""
    seconds: float = 0.0
