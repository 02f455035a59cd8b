"""Elementwise work behind the product, in the registers of the accumulator."""

import pytest

from tests.sim_kernels.kernels import check

STEPS = ["relu", "gelu", "silu", "scale", "bias_col", "bias_row", "residual"]
CHAINS = [
    ("bias_col", "relu"),
    ("bias_row", "gelu"),
    ("residual", "silu"),
    ("scale", "bias_col", "relu", "residual"),
    ("silu", "scale"),
]
SHAPES = {"whole": (64, 32, 32), "ragged": (72, 40, 40), "odd": (67, 35, 40)}


OUT_DTYPES = ["float32", "float16", "bfloat16"]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("step", "out_dtype", "shape"),
    [
        pytest.param(step, dtype, shape, marks=[] if (a + b + c) % 3 == 0 else [pytest.mark.slow])
        for a, step in enumerate(STEPS)
        for b, dtype in enumerate(OUT_DTYPES)
        for c, shape in enumerate(SHAPES)
    ],
)
def test_one_step(step, out_dtype, shape):
    m, n, k = SHAPES[shape]
    problem = {"m": m, "n": n, "k": k, "out_dtype": out_dtype, "epilogue": (step,)}
    check(problem, (64, 32, 32), stages=2, consumers=1)


@pytest.mark.looks_ahead
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chain", CHAINS, ids="+".join)
def test_chains(chain, shape):
    m, n, k = SHAPES[shape]
    problem = {"m": m, "n": n, "k": k, "out_dtype": "float16", "epilogue": chain}
    check(problem, (64, 32, 32), stages=2, consumers=2, wgmma_pending=1)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("persistent", [None, 2])
def test_a_batch_of_one_in_bfloat16(persistent):
    problem = {"m": 136, "n": 72, "k": 40, "batch": True, "dtype": "bfloat16"}
    problem |= {"out_dtype": "bfloat16", "epilogue": ("bias_col", "residual"), "layout": "NN"}
    check(problem, stages=2, consumers=1, persistent=persistent)
