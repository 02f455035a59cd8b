"""Sine, cosine and tangent without local memory, as exact as CUDA's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from tvm_hopper import schedule as hs
from tvm_hopper.codegen_patches import trigonometry
from tvm_hopper.cuda_build import records

TARGET = "nvidia/nvidia-h200"
EXACT = {"sin": np.sin, "cos": np.cos, "tan": np.tan}
ULPS = {"sin": 1.6, "cos": 1.6, "tan": 3.5}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 105615, 105616, np.finfo("float32").max]


def stack_bytes(sch: s_tir.Schedule) -> set[int]:
    """Return the stack frames of what is built."""
    (record,) = records.lookup_all(tvm.compile(sch.mod, target=TARGET))
    return {x.stack_bytes for x in record.compile().kernels.values()}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("sin", "float32"), ("tan", "float64"), ("cos", "bfloat16"), ("sin", "float16")],
)
def test_no_kernel_has_a_stack_frame(name, dtype):
    x = te.placeholder((8, 64), dtype, name="X")
    y = te.compute(x.shape, lambda i, j: getattr(tirx, name)(x[i, j]), name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    hs.pointwise(sch)
    assert stack_bytes(sch) == {0}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_behind_a_product_nothing_is_spilled(dtype):
    a, b = (te.placeholder((512, 128), dtype, name=name) for name in "AB")
    k = te.reduce_axis((0, 128), "k")

    def product(i, j):
        return te.sum(a[i, k].astype("float32") * b[j, k].astype("float32"), axis=k)

    c = te.compute((512, 512), product, name="C")
    d = te.compute(c.shape, lambda i, j: tirx.sin(c[i, j].astype(dtype)), name="D")
    sch = s_tir.Schedule(te.create_prim_func([a, b, d]))
    hs.matmul(sch, "C", hs.MatmulConfig((256, 128, 64), consumers=2, store="tma"))
    assert stack_bytes(sch) == {0}


def test_a_text_without_these_functions_stays():
    text = 'extern "C" __global__ void k() { asinf(x); __sinf(x); tanhf(x); cos[0]; }'
    assert trigonometry.add_trigonometry(text) == text
    assert trigonometry.add_trigonometry(f"sinf(x);\n{text}") == f"sinf(x);\n{text}"


def test_the_table_holds_the_bits_of_two_over_pi():
    one = 10**420

    def arc_tangent_of_inverse(x: int) -> int:
        term, total, n = one // x, one // x, 1
        while term:
            term = -term // (x * x)
            n += 2
            total += term // n
        return total

    pi = Fraction(4 * (4 * arc_tangent_of_inverse(5) - arc_tangent_of_inverse(239)), one)
    bits = int(2 / pi * 2 ** (64 * (len(trigonometry.TWO_OVER_PI) - 1)))
    for word in reversed(trigonometry.TWO_OVER_PI):
        assert word == bits % 2**64
        bits >>= 64


# -- how exact the text is: the processor computes it

SHIM = """
#include <cmath>
#include <cstring>
#define __constant__ static const
#define __device__
#define __forceinline__ static inline
template <typename T, typename F>
static T bits_of(F x) { T y; memcpy(&y, &x, sizeof(y)); return y; }
#define __float_as_int bits_of<int, float>
#define __float_as_uint bits_of<unsigned, float>
#define __double_as_longlong bits_of<long long, double>
#define __double2loint(x) int(bits_of<long long, double>(x))
#define __umul64hi(a, b) ((unsigned long long)((unsigned __int128)(a) * (b) >> 64))
"""
LOOPS = """
#define LOOP(name, type, value) \\
  extern "C" void name(type* x, long n) { for (long i = 0; i < n; ++i) x[i] = value; }
#define LOOPS(type) \\
  LOOP(sin_##type, type, tvm_hopper_turned(0, x[i])) \\
  LOOP(cos_##type, type, tvm_hopper_turned(1, x[i])) \\
  LOOP(tan_##type, type, tvm_hopper_tangent(x[i]))
LOOPS(float) LOOPS(double)
LOOP(sin_half, float, tvm_hopper_turned<false>(0, x[i]))
LOOP(cos_half, float, tvm_hopper_turned<false>(1, x[i]))
"""


@pytest.fixture(scope="module")
def compute(tmp_path_factory):
    """Return a function that computes the text of a name for many numbers."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder: Path = tmp_path_factory.mktemp("trigonometry")
    texts = [SHIM, trigonometry.TABLE, trigonometry.FLOAT.text, trigonometry.DOUBLE.text, LOOPS]
    (folder / "text.cc").write_text("".join(texts))
    command = ["g++", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-o", "text.so", "text.cc"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "text.so"))

    def call(name: str, x: np.ndarray) -> np.ndarray:
        got = x.copy()
        getattr(library, name)(ctypes.c_void_p(got.ctypes.data), ctypes.c_long(got.size))
        return got

    return call


def ulps(got: np.ndarray, wanted: np.ndarray) -> Any:
    """Return how many units in the last place a result is off, of numbers only."""
    info = ml_dtypes.finfo(got.dtype)
    _, exponents = np.frexp(np.maximum(np.abs(wanted), wanted.dtype.type(info.tiny)))
    unit = np.ldexp(np.ones_like(wanted), exponents - info.nmant - 1)
    return np.abs(got.astype(wanted.dtype) - wanted) / unit


@pytest.mark.parametrize("name", EXACT)
def test_float32_is_as_exact_as_cudas(name, compute):
    halves = np.arange(2**16, dtype=np.uint16)
    patterns = np.random.default_rng(3).integers(0, 2**32, 400_000, dtype=np.uint32)
    near = np.arange(-(2**17), 2**17) * (np.pi / 2)  # where results are small
    x = np.concatenate(
        [np.float32(SPECIAL), patterns.view(np.float32), near.astype(np.float32)]
        + [halves.view(kind).astype(np.float32) for kind in (np.float16, ml_dtypes.bfloat16)]
    )
    got = compute(f"{name}_float", x)
    with np.errstate(invalid="ignore"):
        wanted = EXACT[name](x.astype(np.float64))
    finite = np.isfinite(x)
    assert np.isnan(got[~finite]).all()
    assert ulps(got, wanted)[finite].max() <= ULPS[name]
    np.testing.assert_array_equal(np.signbit(got[:2]), np.signbit(wanted[:2]))
    if name != "tan":
        every = halves.view(np.float16).astype(np.float32)
        same = compute(f"{name}_half", every)
        np.testing.assert_array_equal(same, compute(f"{name}_float", every))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no longer type than float64")
@pytest.mark.parametrize("name", EXACT)
def test_float64_is_as_exact_as_its_rounding(name, compute):
    rng = np.random.default_rng(3)
    patterns = rng.integers(0, 2**64, 50_000, dtype=np.uint64).view(np.float64)
    near = np.arange(-(2**15), 2**15) * (np.pi / 2)
    x = np.concatenate([SPECIAL, patterns, near, near * 1e9, rng.normal(size=50_000) * 100])
    got = compute(f"{name}_double", x)
    with np.errstate(invalid="ignore"):
        wanted = EXACT[name](x.astype(np.longdouble))
    finite = np.isfinite(x)
    assert np.isnan(got[~finite]).all()
    assert ulps(got, wanted)[finite].max() <= ULPS[name]
    np.testing.assert_array_equal(np.signbit(got[:2]), np.signbit(wanted[:2]))
