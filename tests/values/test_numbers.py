"""Arguments of the two runs: integers that stay exact, and arrays that cost little."""

import numpy as np
import pytest

from tests.reference.programs import CASES
from tvm_hopper.facts.dtypes import DTYPES
from tvm_hopper.reference.evaluate import Reference
from tvm_hopper.sim.launch.signature import Argument
from tvm_hopper.testing import workloads
from tvm_hopper.verification.numbers import PERIOD, Numbers, choose_numbers


def chosen(k, **more):
    mod = workloads.matmul(64, 64, k, **more)
    shapes = {"A": (64, k), "B": (64, k)}
    arguments = [np.zeros(s, "float16") for s in shapes.values()]
    arguments.append(np.zeros((64, 64), more.get("out_dtype", "float32")))
    return choose_numbers(Reference(mod), ["A", "B", "C"], arguments)[0]


def filled(numbers, name, dtype, shape):
    array = np.zeros(shape, DTYPES[dtype].numpy)
    numbers.fill(Argument(name, dtype, shape), array)
    return array


HALF = {"acc_dtype": "float16", "out_dtype": "float16", "cast": "none"}


@pytest.mark.parametrize(
    ("k", "more", "largest"),
    [(4096, {}, 8), (1 << 20, {}, 4), (64, HALF, 5), (512, HALF, 2), (2048, HALF, 1)],
)
def test_integers_are_as_large_as_the_longest_sum_allows(k, more, largest):
    numbers = chosen(k, **more)
    assert (numbers.largest, numbers.density) == (largest, 1)


def test_sums_that_are_too_long_have_zeros():
    numbers = chosen(8192, **HALF)
    assert numbers.largest == 1
    assert numbers.density == pytest.approx(0.125**0.5)
    values = filled(numbers, "A", "float16", (64, 1024))
    assert 0.2 < (values != 0).mean() < 0.3  # and a third of all is zero anyway


@pytest.mark.parametrize("kind", ["integers", "normal"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8", "uint8", "bool"])
def test_types(kind, dtype):
    values = filled(Numbers(kind), "A", dtype, (64, 64)).astype(float)
    whole = (values == np.floor(values)).all()
    assert whole == (kind == "integers" or not dtype.startswith(("float", "bfloat")))
    assert values.std() > 0.3
    assert (dtype not in ("uint8", "bool")) == (values.min() < 0)


def test_indices_are_drawn_over_their_legal_range():
    case = CASES["rows_by_index"]()
    arguments = [np.zeros(s, d) for s, d in zip(case.shapes, case.dtypes, strict=True)]
    reference = Reference(case.func)
    assert reference.positions == [1]
    assert reference.legal_indices(arguments) == {1: 16}
    for numbers in choose_numbers(reference, ["X", "at", "Y"], arguments):
        values = filled(numbers, "at", "int32", (16,))
        found = set(values.tolist())
        assert len(found) > 4
        assert found <= set(range(16))
    many = filled(Numbers("normal", positions={"at": 1000}), "at", "int32", (4096,))
    assert set(many.tolist()) == set(range(936, 1000))  # few rows, the last one among them
    assert set(filled(Numbers("normal", positions={"n": 2}), "n", "int32", (99,))) == {0, 1}


def test_large_arrays_repeat_with_a_prime_period():
    values = filled(Numbers("normal"), "A", "float16", (1100, 1024))
    flat = values.reshape(-1)
    assert (flat[PERIOD:] == flat[: flat.size - PERIOD]).all()
    assert all(PERIOD % p for p in range(2, 1025))
    assert not (values[0] == values[1]).all()


def test_views_are_filled_too():
    base = np.zeros((64, 96), "float32")
    view = base[:, :64]
    Numbers("normal").fill(Argument("A", "float32", (64, 64)), view)
    assert view.all()
    assert not base[:, 64:].any()
