"""What is read elsewhere than at its own element: rotated pairs, rows of tables, parts of rows."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import capture, schedule as hs
from tvm_hopper.simulation import simulate, verify
from tvm_hopper.testing import attention

TARGET = "nvidia/nvidia-h200"


def scheduled(mod, config=None):
    sch = s_tir.Schedule(mod)
    hs.pointwise(sch, config=config)
    return sch


def text_of(sch):
    return capture.cuda_sources(tvm.compile(sch.mod, target=TARGET))[0]


@pytest.mark.parametrize(
    ("tokens", "columns", "head"), [(3, 512, 128), (5, 96, 12), (2, 72, 6)], ids=str
)
def test_rotated_pairs(tokens, columns, head):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((tokens, columns)).astype(ml_dtypes.bfloat16)
    c, s = (rng.standard_normal((tokens, head)).astype(np.float32) for _ in range(2))
    sch = scheduled(attention.rope(tokens, columns, head=head))
    result = simulate(sch, {"X": x, "cosine": c, "sine": s})
    assert not result.findings, result.findings
    got, want = result.outputs["Y"].astype(np.float64), attention.reference(x, c, s)
    assert np.all(np.abs(got - want) < 2e-2 * (np.abs(want) + 0.1))


def test_both_halves_of_a_pair_are_loaded_by_whole_vectors():
    text = text_of(scheduled(attention.rope(64, 512), hs.PointwiseConfig(64, 1)))
    assert text.count("*(uint4*)(X_ptr") == 2
    assert text.count("*(float4*)(cosine_ptr") == text.count("*(float4*)(sine_ptr") == 2
    assert not any(f"{name}_ptr[" in text for name in ("X", "cosine", "sine"))


def test_pairs_are_verified_clean():
    mod = attention.rope(6, 512)
    assert verify(scheduled(mod, hs.PointwiseConfig(64, 2)), against=mod).verdict == "clean"


def test_a_tensor_that_outgrows_the_cache_is_loaded_with_a_hint():
    text = text_of(scheduled(attention.rope(1 << 16, 4096)))
    assert "evict_last" in text
    assert "uint4*)(X_ptr" not in text


def table(rows, columns, number="int32"):
    w = te.placeholder((50, columns), "float16", name="W")
    p = te.placeholder((rows,), number, name="P")
    y = te.compute((rows, columns), lambda i, j: w[p[i], j] * w[p[i], j], name="Y")
    return tvm.IRModule({"main": te.create_prim_func([w, p, y])})


@pytest.mark.parametrize("number", ["int32", "int64"])
def test_rows_of_a_table(number):
    sch = scheduled(table(7, 64, number), hs.PointwiseConfig(32, 1))
    rng = np.random.default_rng(2)
    w, p = rng.standard_normal((50, 64)).astype("float16"), rng.integers(0, 50, 7).astype(number)
    result = simulate(sch, {"W": w, "P": p})
    assert not result.findings, result.findings
    np.testing.assert_allclose(result.outputs["Y"], w[p] * w[p], rtol=2e-3)
    text = text_of(sch)
    assert "*(uint4*)(W_ptr" in text
    assert "W_ptr[" not in text
