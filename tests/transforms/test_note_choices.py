"""NoteChoices: what a model chose is noted, and the kernel's mark goes."""

from __future__ import annotations

from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper.plan.notes import RemarkNote
from tvm_hopper.transforms.note_choices import NoteChoices

BEFORE = """
@T.prim_func(private=True, s_tir=True)
def func(X: T.Buffer((64,), "float32")):
    T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_90a"})})
    for bx in T.thread_binding(64, thread="blockIdx.x", annotations=NOTES):
        with T.sblock("init"):
            X[bx] = T.float32(0)
"""
CHOSEN = '{"tvm_hopper.memory_bound": "row_reduction", "tvm_hopper.chosen": "256 threads"}'


def test_a_choice_is_noted():
    got = run(parse(BEFORE, ("NOTES", CHOSEN)), NoteChoices())
    check(got, parse(BEFORE, ("NOTES", "{}")))
    assert notes_of(got) == (RemarkNote("row reduction: 256 threads"),)


def test_a_mark_alone_is_noted():
    got = run(parse(BEFORE, ("NOTES", '{"tvm_hopper.memory_bound": "pointwise"}')), NoteChoices())
    check(got, parse(BEFORE, ("NOTES", "{}")))
    assert notes_of(got) == (RemarkNote("pointwise"),)


def test_other_kernels_stay():
    other = parse(BEFORE, ("NOTES", "{}"))
    check(run(other, NoteChoices()), other)
