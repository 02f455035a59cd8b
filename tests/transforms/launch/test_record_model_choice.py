"""RecordModelChoice: what a model chose is noted, and the kernel's mark goes."""

import pytest

from tests.transforms.scripts import check, notes_of, parse, run
from tvm_hopper.errors import LoweringError
from tvm_hopper.transforms.common.explain_notes import FallbackNote, RemarkNote
from tvm_hopper.transforms.launch.record_model_choice import RecordModelChoice

BEFORE = """
def func(X: T.Buffer((64,), "float32")):
    T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_90a"})})
    for bx in T.thread_binding(64, thread="blockIdx.x", annotations=NOTES):
        for v in T.vectorized(4):
            with T.sblock("init"):
                X[v] = T.float32(0)
"""
CHOSEN = '{"tvm_hopper.memory_bound": "row_reduction", "tvm_hopper.chosen": "256 threads"}'


def test_a_choice_is_noted():
    got = run(parse(BEFORE, ("NOTES", CHOSEN)), RecordModelChoice())
    check(got, parse(BEFORE, ("NOTES", "{}")))
    assert notes_of(got) == (RemarkNote("row reduction: 256 threads"),)


def test_a_mark_alone_is_noted():
    got = run(
        parse(BEFORE, ("NOTES", '{"tvm_hopper.memory_bound": "pointwise"}')), RecordModelChoice()
    )
    check(got, parse(BEFORE, ("NOTES", "{}")))
    assert notes_of(got) == (RemarkNote("pointwise"),)


NARROW = ("T.vectorized(4)", "T.vectorized(2)")
SLOWER = (
    "row reduction: at most 8 bytes of a tensor are loaded or stored at once; faster with rows of "
    "a multiple of 16 bytes, and vectors of as many"
)


def test_narrow_vectors_are_a_fallback():
    got = run(parse(BEFORE, ("NOTES", CHOSEN), NARROW), RecordModelChoice())
    check(got, parse(BEFORE, ("NOTES", "{}"), NARROW))
    assert notes_of(got) == (RemarkNote("row reduction: 256 threads"), FallbackNote(SLOWER))


def test_narrow_vectors_are_refused_strictly():
    strict = parse(BEFORE, ("NOTES", CHOSEN), NARROW).with_attr("tvm_hopper.strict", True)
    with pytest.raises(LoweringError, match=r"at most 8 bytes of a tensor .*; need rows of a mult"):
        run(strict, RecordModelChoice())


def test_other_kernels_stay():
    other = parse(BEFORE, ("NOTES", "{}"))
    check(run(other, RecordModelChoice()), other)
