"""Parts of outputs are what numpy computes; their errors are zero, or cover the types' rounding."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te
from tvm.script import tirx as T

from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.reference.evaluate import Reference, TooMuchWork
from tvm_hopper.testing import memory_bound, workloads

from .programs import CASES, Case


def arguments(case: Case, kind: str, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    made = []
    for dtype, shape in zip(case.dtypes, case.shapes, strict=True):
        numpy = DTYPES[dtype].numpy
        if kind == "integers" or numpy.kind == "i":
            low = 0 if dtype == "int32" else -4
            made.append(rng.integers(low, 5, shape).astype(numpy))
        else:
            made.append(rng.standard_normal(shape).astype(numpy))
    return made


def parts(rng, shape):
    low = [int(rng.integers(0, size)) for size in shape]
    return tuple((a, int(rng.integers(a, size))) for a, size in zip(low, shape, strict=True))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", ["integers", "normal"])
@pytest.mark.parametrize("name", CASES)
def test_parts_of_outputs_are_what_numpy_computes(name, kind):
    case = CASES[name]()
    reference = Reference(case.func)
    count = len(case.dtypes) - case.outputs
    for seed in range(6):
        given = arguments(case, kind, seed)
        inputs = [
            x.astype(np.float64) if x.dtype.kind not in "iu" else x.astype(np.int64)
            for x in given[:count]
        ]
        right = [
            x.astype(DTYPES[dtype].numpy).astype(np.float64)
            for x, dtype in zip(case.compute(*inputs), case.dtypes[count:], strict=True)
        ]
        rng = np.random.default_rng(seed)
        wanted = {count + i: parts(rng, x.shape) for i, x in enumerate(right)}
        found = reference.evaluate(given, wanted)
        for place, expected in found.items():
            inside = tuple(slice(a, b + 1) for a, b in wanted[place])
            need = right[place - count][inside]
            assert expected.value.shape == need.shape
            gap = np.abs(expected.value.astype(float) - need)
            assert (gap <= expected.error + 1e-12 * np.abs(need)).all()
            if kind == "integers" and case.exact_on_integers:
                assert not expected.error.any()
            assert (expected.error <= 0.02 * np.abs(need).max() + 1.01).mean() > 0.9


def test_what_takes_too_long_is_refused_before_it_begins():
    mod = workloads.matmul(1 << 14, 1 << 14, 1 << 14)
    zero = np.lib.stride_tricks.as_strided(np.zeros(1, "float16"), (1 << 14, 1 << 14), (0, 0))
    out = np.lib.stride_tricks.as_strided(np.zeros(1, "float32"), (1 << 14, 1 << 14), (0, 0))
    whole = ((0, (1 << 14) - 1),) * 2
    with pytest.raises(
        TooMuchWork, match=r"function main: a part of its outputs needs about 8.8e\+12"
    ):
        Reference(mod).evaluate([zero, zero, out], {2: whole})


def test_a_scalar_argument_is_a_number():
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((8,), "float32"), a: T.float32, n: T.int32, Y: T.Buffer((8,), "float32")):
        for i in range(8):
            if i < n:
                Y[i] = a * X[i]

    x = np.arange(8, dtype="float32")
    found = Reference(main).evaluate([x, 0.5, 3, np.full(8, 7, "float32")], {3: ((0, 7),)})[3]
    assert found.value.tolist() == [0, 0.5, 1, 7, 7, 7, 7, 7]
    assert not found.error.any()


@T.prim_func(s_tir=True)
def sums_of_four(A: T.Buffer((4, 4096), "float32"), C: T.Buffer((4096,), "float32")):
    for i in range(4096):
        with T.sblock("C"):
            v = T.axis.spatial(4096, i)
            C[v] = A[0, v] + A[1, v] + A[2, v] + A[3, v]


def test_a_sum_that_is_a_number_by_chance_is_rounded_on_the_way():
    a = np.random.default_rng(0).standard_normal((4, 4096)).astype("float32")
    got = a[0] + a[1] + a[2] + a[3]
    out = np.zeros(4096, "float32")
    (expected,) = Reference(sums_of_four).evaluate([a, out], {1: ((0, 4095),)}).values()
    gap = np.abs(got - expected.value.astype(float))
    assert (gap <= expected.error).all()
    assert (gap[expected.value.astype("float32") == expected.value] > 0).any()


def test_a_sum_that_elements_share_counts_once():
    reference = Reference(memory_bound.softmax(8, 64, "float32"))
    arguments = [np.zeros((8, 64), "float32")] * 2
    one, every = reference.one_element(arguments), reference.everything(arguments)
    assert one.work > 2 * 64  # its row is reduced twice
    assert every.work < 2 * 8 * one.work


def test_a_quotient_by_what_is_larger_than_a_types_numbers_may_be_zero():
    x = te.placeholder((221,), "float32", name="X")
    one = te.const(1, "float32")
    y = te.compute((221,), lambda i: x[i] / (one + te.exp(-x[i])), name="Y")
    values = np.arange(-110, 111, dtype=np.float32)
    with np.errstate(over="ignore"):
        got = values / (1 + np.exp(-values))
    reference = Reference(te.create_prim_func([x, y]))
    out = np.zeros(221, np.float32)
    (expected,) = reference.evaluate([values, out], {1: ((0, 220),)}).values()
    gap = np.abs(got - expected.value.astype(float))
    assert (gap <= expected.error).all()
    assert gap[0] > 0 == got[0]
    is_lost = values < -86  # exp(87) is larger than 2**125
    sizes = np.abs(expected.value) * np.where(is_lost, 1.001, 1e-5)
    assert (expected.error <= sizes + 2.0**-126).all()
