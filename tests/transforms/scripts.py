"""What the tests of the passes share: run passes on one function, compare, write variants of IR."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.script import tirx as T

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
    """Parse TVMScript, some of its words changed; each has to be there."""
    for old, new in changes:
        assert old in text, f"the script has no {old!r}"
        text = text.replace(old, new)
    return tvm.script.from_source(text, extra_vars={"T": T})


@T.prim_func(private=True, s_tir=True)
def _other(X: T.Buffer((64,), "float32")):
    for bx in T.thread_binding(64, thread="blockIdx.x"):
        with T.sblock("init"):
            X[bx] = T.float32(0)


def check_other_kernel_stays(
    ours: tirx.PrimFunc, want: tirx.PrimFunc, one: tvm.ir.transform.Pass | Step
) -> None:
    """Put a kernel that is not ours in front: it stays the same object, ours becomes `want`'s."""
    both = ours.with_body(ir.seq(_other.body.block.body, ours.body.block.body))
    first, second = ir.kernels(run(both, one))
    assert first.same_as(ir.kernels(both)[0])
    tvm.ir.assert_structural_equal(second, ir.kernels(want)[0], map_free_vars=True)
