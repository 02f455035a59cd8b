"""split_vector_tails: the last elements of a tensor leave its vectors whole."""

import pytest

from tests.transforms.scripts import check, parse, run
from tvm_hopper.transforms.memory_bound.split_vector_tails import split_vector_tails

BEFORE = """
def func(X: T.Buffer((7007,), "float16"), Y: T.Buffer((7007,), "float16")):
    for bx in T.thread_binding(4, thread="blockIdx.x", memory_bound="pointwise"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            for v in T.vectorized(8):
                with T.sblock("copy", where=CONDITION):
                    Y[bx * 2048 + tx * 8 + v] = X[bx * 2048 + tx * 8 + v]
"""
BOUND = "bx * 2048 + tx * 8 + v < 7007"
LAST = "bx * 2048 + tx * 8 + 7 < 7007"
OTHER = "bx * 256 + tx < 876"
AFTER = """
def func(X: T.Buffer((7007,), "float16"), Y: T.Buffer((7007,), "float16")):
    for bx in T.thread_binding(4, thread="blockIdx.x", memory_bound="pointwise"):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            if SIMPLE:
                for v in T.vectorized(8):
                    with T.sblock("copy", where=REST):
                        Y[bx * 2048 + tx * 8 + v] = X[bx * 2048 + tx * 8 + v]
            else:
                for v in T.unroll(8):
                    with T.sblock("copy", where=CONDITION):
                        Y[bx * 2048 + tx * 8 + v] = X[bx * 2048 + tx * 8 + v]
"""
SIMPLE = "bx * 256 + tx < 875"  # what LAST amounts to


@pytest.mark.parametrize(
    ("condition", "rest"),
    [(BOUND, "T.bool(True)"), (f"{BOUND} and {OTHER}", OTHER), (f"{OTHER} and {BOUND}", OTHER)],
)
def test_whole_vectors_go_without_a_condition(condition, rest):
    got = run(parse(BEFORE, ("CONDITION", condition)), split_vector_tails)
    want = parse(AFTER, ("SIMPLE", SIMPLE), ("REST", rest), ("CONDITION", condition))
    check(got, want)


@pytest.mark.parametrize(
    "condition",
    [
        OTHER,
        "T.bool(True)",
        "bx * 2048 + tx * 8 + v * 2 < 7007",  # not by one
        "7 < bx * 2048 + tx * 8 + v",  # a lower bound
        f"{BOUND} and (bx + v) % 3 < 2",  # elements that do not agree
        "v < X_bound",
    ],
)
def test_other_conditions_stay(condition):
    text = BEFORE.replace("X: T.Buffer", "X_bound: T.int32, X: T.Buffer")
    if condition == "v < X_bound":
        condition = "v * v < X_bound"
    func = parse(text, ("CONDITION", condition))
    check(run(func, split_vector_tails), func)
