"""Masked and constant rows, infinities and NaN, on a GPU, against the plain program."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, te, tirx

from tests.codegen.test_trigonometry import EXACT, ULPS, ulps
from tests.gpu import masked_rows
from tvm_hopper import ir, schedule as hs
from tvm_hopper.testing.relax_forms import model_of

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

TARGET = "nvidia/nvidia-h200"
DTYPES = ["float32", "float16", "bfloat16"]
ROADS = {
    "registers": (1024, None),
    "cluster": (40000, None),
    "streamed": (16384, hs.RowReductionConfig(256, chunks=2, hint=True)),
}


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def run(sch: s_tir.Schedule, *given: np.ndarray) -> np.ndarray:
    """Compile a schedule of one output and run it once."""
    params = sch.mod["main"].params
    kernel = tvm.compile(sch.mod, target=TARGET)["main"]
    device = tvm.cuda(0)
    out = params[-1]
    shape = [int(x) for x in out.shape]
    result = tvm.runtime.tensor(np.full(shape, 7, np.dtype(ir.dtype_of(out))), device)
    kernel(*(tvm.runtime.tensor(np.ascontiguousarray(x), device) for x in given), result)
    return result.numpy()


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", masked_rows.FACTORS)
@pytest.mark.parametrize("name", masked_rows.NAMES)
def test_masked_rows(name, factor, dtype, road):
    columns, config = ROADS[road]
    x = masked_rows.rows(columns, dtype)
    sch = s_tir.Schedule(masked_rows.program(name, factor, len(x), columns, dtype))
    hs.row_reduction(sch, config=config)
    got = run(sch, x).astype("float64")
    want = masked_rows.reference(name, factor, x)
    wrong = [
        i for i in range(len(x)) if not masked_rows.is_close(got[i : i + 1], want[i : i + 1], dtype)
    ]
    assert not wrong


def special(shape: tuple[int, int], dtype: str) -> list[np.ndarray]:
    """Draw two arrays with NaN in the first, in the second and in both, zeros and infinities."""
    a, b = np.random.default_rng(1).standard_normal((2, *shape))
    a[0, ::3], b[1, ::5], a[2], b[2] = np.nan, np.nan, np.nan, np.nan
    a[3], a[4], b[5] = -np.inf, np.inf, -np.inf
    a[6, -1] = np.nan
    a[7], b[7] = 0.0, -0.0
    return [x.astype(np.dtype(dtype)) for x in (a, b)]


ELEMENTWISE = {
    "maximum": (lambda a, b, _: tirx.Max(a, b), np.maximum),
    "minimum": (lambda a, b, _: tirx.Min(a, b), np.minimum),
    "relu": (lambda a, _b, c: tirx.Max(a, c(0)), lambda a, _b: np.maximum(a, 0)),
    "clip": (lambda a, _b, c: tirx.Max(tirx.Min(a, c(1)), c(-1)), lambda a, _b: np.clip(a, -1, 1)),
}


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_nan_stays(name, dtype):
    build, want = ELEMENTWISE[name]
    given = special((8, 1000), dtype)
    a, b = (te.placeholder(x.shape, dtype, name=n) for x, n in zip(given, "AB", strict=True))

    def value(i, j):
        return build(a[i, j], b[i, j], lambda x: tirx.const(x, dtype))

    sch = s_tir.Schedule(te.create_prim_func([a, b, te.compute(a.shape, value, name="Y")]))
    hs.pointwise(sch)
    want = want(*(x.astype("float64") for x in given))
    np.testing.assert_array_equal(run(sch, *given).astype("float64"), want)


LIMITS = {"max": lambda x: (x.min, None), "min": lambda x: (None, x.max)}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [96, 4096, 40000])
def test_nan_is_the_greatest_and_the_least(name, axis, dtype, columns):
    x = special((8, columns), dtype)[0]
    x = x if axis else np.ascontiguousarray(x.T)
    a = te.placeholder(x.shape, dtype, name="A")
    k = te.reduce_axis((0, x.shape[axis]), "k")

    def value(i):
        return getattr(te, name)(a[(i, k) if axis else (k, i)].astype("float32"), k)

    y = te.compute((x.shape[1 - axis],), value, name="Y")
    sch = s_tir.Schedule(te.create_prim_func([a, y]))
    (hs.row_reduction if axis else hs.column_reduction)(sch)
    # A row of infinities has the number that the reduction begins with.
    limits = np.finfo("float32")
    want = np.clip(getattr(np, name)(x.astype("float64"), axis), *LIMITS[name](limits))
    np.testing.assert_array_equal(run(sch, x), want.astype("float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_squares_that_are_equal_cancel(dtype):
    x = np.random.default_rng(2).standard_normal((64, 256)).astype(np.dtype(dtype))
    a, b = (te.placeholder(x.shape, dtype, name=n) for n in "AB")

    def value(i, j):
        p, q = a[i, j].astype("float32") * tirx.const(1.1, "float32"), b[i, j].astype("float32")
        q = q * tirx.const(1.1, "float32")
        return te.sqrt(p * p - q * q)

    sch = s_tir.Schedule(te.create_prim_func([a, b, te.compute(x.shape, value, name="Y")]))
    hs.pointwise(sch)
    assert not run(sch, x, x).any()


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_in_rows_of_infinities(name):
    x = np.random.default_rng(3).standard_normal((8, 1000)).astype("float32")
    worst = -np.inf if name == "argmax" else np.inf
    x[1], x[2, ::2], x[3, 1:] = worst, worst, worst
    x[4] = np.copysign(np.finfo("float32").max, worst)
    mod = model_of(lambda given: getattr(relax.op, name)(given, -1), (x.shape, "float32"))
    ex = relax.build(mod, target=TARGET, relax_pipeline="tvm_hopper")
    device = tvm.cuda(0)
    got = relax.VirtualMachine(ex, device)["main"](tvm.runtime.tensor(x, device)).numpy()
    np.testing.assert_array_equal(got, getattr(np, name)(x, -1))


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("name", EXACT)
def test_angles_of_all_magnitudes(name, dtype):
    numbers = f"uint{8 * np.dtype(dtype).itemsize}"
    every = np.random.default_rng(3).integers(0, np.iinfo(numbers).max, (1024, 1024), numbers)
    if numbers == "uint16":
        every = np.arange(2**16, dtype=numbers).reshape(256, 256)
    given = every.view(dtype)
    x = te.placeholder(given.shape, dtype, name="X")
    y = te.compute(x.shape, lambda i, j: getattr(tirx, name)(x[i, j]), name="Y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    hs.pointwise(sch)
    got = run(sch, given)
    with np.errstate(invalid="ignore"):  # signalling NaN
        finite = np.isfinite(given)
        assert np.isnan(got[~finite]).all()
    wanted = EXACT[name](given[finite].astype(np.longdouble))
    got, limit = got[finite], 0.51 if numbers == "uint16" else ULPS[name]
    if dtype == "float64" and name != "tan":
        limit = 2.4
    fits = np.abs(wanted) < ml_dtypes.finfo(dtype).max  # tangents of float16 may not
    assert ulps(got[fits], wanted[fits]).max() <= limit
    assert np.isinf(got[~fits]).all()
