"""Transposed tiles whose rows run along memory: vectors, where bounds allow them, and values."""

import pytest

from tests.sim_kernels.kernels import check, scheduled
from tests.sim_kernels.mutate import change, instructions
from tvm_hopper import ir
from tvm_hopper.simulation import load, simulate
from tvm_hopper.testing import workloads

HALF = {"dtype": "float16", "out_dtype": "float16"}
TURN = "movmatrix"


def kernel_of(problem, tile, **config):
    fields = {"stages": 2, "consumers": 1, "form": "transposed", **config}
    mod, module = scheduled({**HALF, **problem}, tile, **fields)
    return mod, load(module)


def count(problem, tile, **config):
    """Return how often a kernel turns matrices, and the elements of its stores to memory."""
    (func,) = kernel_of(problem, tile, **config)[1].kernels.values()
    stores = ir.find_all(func.body, ir.BufferStore, lambda x: x.buffer.scope() in ("", "global"))
    lanes = {ir.dtype_of(x.value).partition("x")[2] or "1" for x in stores}
    return len(instructions(func, TURN)), lanes


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("problem", "tile", "config"),
    [
        ({"m": 64, "n": 64, "k": 32}, (64, 64, 16), {}),
        ({"m": 72, "n": 64, "k": 32}, (64, 72, 16), {}),  # nine matrices: the last one alone
        ({"m": 70, "n": 136, "k": 40}, (64, 80, 16), {}),  # edges cut columns and rows
        ({"m": 72, "n": 128, "k": 32}, (128, 72, 16), {"consumers": 2}),
        ({"m": 144, "n": 64, "k": 32}, (64, 144, 16), {"consumers": 2}),
        ({"m": 72, "n": 128, "k": 32, "epilogue": ("bias_col", "relu")}, (64, 72, 16), {}),
        ({"m": 72, "n": 128, "k": 32, "epilogue": ("residual",)}, (128, 64, 16), {}),
        ({"m": 136, "n": 128, "k": 64}, (64, 72, 16), {"persistent": 3}),
        ({"m": 136, "n": 128, "k": 64}, (64, 72, 16), {"persistent": 3, "split_k": "stream"}),
    ],
)
def test_values(problem, tile, config):
    check(
        {**HALF, **problem}, tile, **{"stages": 2, "consumers": 1, "form": "transposed", **config}
    )


def test_bfloat16():
    problem = {"m": 64, "n": 72, "k": 32, "dtype": "bfloat16", "out_dtype": "bfloat16"}
    check(problem, (64, 64, 16), stages=2, consumers=1, form="transposed")


def test_eight_at_a_time():
    assert count({"m": 64, "n": 64, "k": 32}, (64, 64, 16)) == (4, {"8"})


@pytest.mark.parametrize(
    ("problem", "tile", "config"),
    [
        ({"m": 64, "n": 68, "k": 32}, (64, 64, 16), {}),  # rows of the output off 16 bytes
        ({"m": 48, "n": 64, "k": 32}, (64, 48, 16), {}),  # few columns
        ({"m": 64, "n": 64, "k": 32, "out_dtype": "float32"}, (64, 64, 16), {}),
        ({"m": 64, "n": 64, "k": 64}, (64, 64, 16), {"split_k": 2}),  # who shares the stores
    ],
)
def test_one_by_one(problem, tile, config):
    assert count(problem, tile, **config) == (0, {"1"})


def test_a_matrix_that_is_not_turned_is_wrong():
    mod, program = kernel_of({"m": 64, "n": 64, "k": 32}, (64, 64, 16))
    a, b = workloads.make_inputs(mod, seed=1)
    want = workloads.reference([a, b]).astype("float16")
    names = [p.name for p in mod["main"].params]
    values = dict(zip(names, (a, b), strict=False))
    assert (simulate(program, values).outputs[names[-1]] == want).all()
    wrong = change(program, TURN, 1)
    assert not (simulate(wrong, values).outputs[names[-1]] == want).all()
