"""What the tests of the passes share: run passes on one function, compare, write variants of IR."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.script import tirx as T

from tests.transforms.short_scripts import expand
from tvm_hopper import ir
from tvm_hopper.transforms.common.explain_notes import Note, read_notes
from tvm_hopper.transforms.kernel_pass import Step


def run(func: tirx.PrimFunc, *passes: tvm.ir.transform.Pass | Step) -> tirx.PrimFunc:
    """Apply passes, or single steps of them, in order, to one function."""
    for one in passes:
        is_pass = isinstance(one, tvm.ir.transform.Pass)
        func = one(tvm.IRModule({"main": func}))["main"] if is_pass else one(func)
    return func


def check(got: tirx.PrimFunc, want: tirx.PrimFunc) -> None:
    """Compare two functions up to the names of variables; what `explain` reads is left out."""
    tvm.ir.assert_structural_equal(without_notes(got), without_notes(want), map_free_vars=True)


def without_notes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function without the facts that passes note for `explain`."""
    return func.without_attr(ir.PLAN_ATTR) if ir.PLAN_ATTR in (func.attrs or {}) else func


def notes_of(func: tirx.PrimFunc, number: int = 0) -> tuple[Note, ...]:
    """Return what the passes noted of a kernel."""
    return read_notes(func).kernels.get(number, ())


def parse(text: str, *changes: tuple[str, str]) -> tirx.PrimFunc:
    """Parse TVMScript, long or short, some of its words changed; each has to be there."""
    return given()(changed(text, *changes))


def given(**names: Any) -> Callable[[str], tirx.PrimFunc]:
    """Return what parses TVMScript, long or short, that uses these names."""
    return lambda text: tvm.script.from_source(expand(text), extra_vars={"T": T, **names})


def changed(text: str, *changes: tuple[str, str]) -> str:
    """Return a script with some of its words changed; each has to be there."""
    for old, new in changes:
        assert old in text, f"the script has no {old!r}"
        text = text.replace(old, new)
    return text


def nest(script: str, start: str) -> str:
    """Return the lines of the one statement whose first line holds `start`, with what it encloses.

    A header of several lines goes on in lines that are deeper, as what it encloses does.
    """
    lines = script.splitlines(keepends=True)
    (first,) = [at for at, line in enumerate(lines) if start in line]
    depth = len(lines[first]) - len(lines[first].lstrip())
    rest = (at for at, line in enumerate(lines) if at > first and line.strip())
    end = next((at for at in rest if not lines[at].startswith(" " * (depth + 1))), len(lines))
    return "".join(lines[first:end])


def deeper(text: str, spaces: int = 4) -> str:
    """Indent lines."""
    return textwrap.indent(text, " " * spaces)


_other = parse("""
def other(X: T.Buffer((64,), "float32")):
    for bx in T.thread_binding(64, thread="blockIdx.x"):
        with T.sblock("init"):
            X[bx] = T.float32(0)
""")


def check_other_kernel_stays(
    ours: tirx.PrimFunc, want: tirx.PrimFunc, one: tvm.ir.transform.Pass | Step
) -> None:
    """Put a kernel that is not ours in front: it stays the same object, ours becomes `want`'s."""
    both = ours.with_body(ir.seq(_other.body.block.body, ours.body.block.body))
    first, second = ir.kernels(run(both, one))
    assert first.same_as(ir.kernels(both)[0])
    tvm.ir.assert_structural_equal(second, ir.kernels(want)[0], map_free_vars=True)
