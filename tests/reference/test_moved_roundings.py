"""The bound of attention whose weights are rounded before their sum is known."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.schedule.attention.programs import SCALE, Case, program, values
from tvm_hopper.reference.evaluate import Reference
from tvm_hopper.reference.lift import SECOND_ORDER

CASE = Case(h=1, kv=1, n=64, m=48, d=16, v=16)
TYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8": ml_dtypes.float8_e4m3fn,
}


def rounded(x, dtype):
    return x.astype(dtype).astype(np.float64)


def attention(given, dtype, weights):
    """Round weights to a type before they are divided, as a kernel does."""
    q, k, v = (given[x][0, 0].astype(np.float64) for x in "QKV")
    s = q @ k.T
    e = np.exp((s - s.max(-1, keepdims=True)) * SCALE)
    p = rounded(e, weights)
    return rounded(p @ v / e.sum(-1, keepdims=True), dtype)


def steep(case):
    """Return arguments of which all weights but one in a row are rounded alike."""
    given = {name: np.zeros_like(x) for name, x in values(case).items()}
    given["Q"][..., 0] = np.linspace(0.2, 9, case.n).astype(case.dtype)
    given["K"][:, :, 1:, 0] = -1
    given["V"][:, :, 1:] = 1
    return given


def shares_of_bound(dtype, weights, moved=True):
    """Return the largest error with weights of each type, as a share of the element's bound."""
    case = replace(CASE, dtype=dtype)
    given = steep(case)
    out = np.zeros((1, 1, case.n, case.v), TYPES[dtype])
    whole = {3: tuple((0, x - 1) for x in out.shape)}
    reference = Reference(program(case), moved_roundings=moved)
    found = reference.evaluate([*given.values(), out], whole)[3]
    shares = []
    for one in weights:
        got = attention(given, TYPES[dtype], TYPES[one])
        gap, bound = abs(got - found.value[0, 0]), found.error[0, 0] * SECOND_ORDER
        with np.errstate(divide="ignore", invalid="ignore"):
            shares.append(np.max(np.where(gap == 0, 0, gap / bound)))
    return shares


@pytest.mark.parametrize(("dtype", "coarser"), [("float16", "bfloat16"), ("bfloat16", "float8")])
def test_weights_may_be_rounded_at_another_scale(dtype, coarser):
    """Within the bound of it, and not without it; weights of fewer bits are outside."""
    right, coarse = shares_of_bound(dtype, [dtype, coarser])
    assert 0.25 < right < 1 < coarse
    (unmoved,) = shares_of_bound(dtype, [dtype], moved=False)
    assert unmoved > 1
