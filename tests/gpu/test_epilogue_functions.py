"""Activations behind a product, over all of float32, on a GPU: errors after rounding to 16 bits.

The product is zero, and a residual of float32 brings every argument as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.codegen_patches.activations import BESIDE
from tvm_hopper.transforms.math.activations import ACTIVATIONS

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

TINY = 2.0**-118  # the smallest normal number of float32, times arguments up to 256
SIZE = 1024  # rows and columns: a million arguments


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def one(value: float = 1.0) -> Any:
    """Return a constant."""
    return te.const(value, "float32")


def _tanh_gelu(x: Any) -> Any:
    return one(0.5) * x * (one() + te.tanh(one(0.7978845608) * (x + one(0.044715) * x * x * x)))


def _exact_tanh_gelu(x: Any) -> Any:
    return x * torch.sigmoid(2 * 0.7978845608 * (x + 0.044715 * x**3))


# What the program computes, and what it is in float64.
FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "1 + tanh": (lambda x: one() + te.tanh(x), lambda x: 2 * torch.sigmoid(2 * x)),
    "1 - tanh": (lambda x: one() - te.tanh(x), lambda x: 2 * torch.sigmoid(-2 * x)),
    "1 + erf": (lambda x: te.erf(x) + one(), lambda x: torch.special.erfc(-x)),
    "1 - erf": (lambda x: one() - te.erf(x), torch.special.erfc),
    "sigmoid": (te.sigmoid, torch.sigmoid),
    "1 / (1 + exp)": (lambda x: one() / (one() + te.exp(x)), lambda x: torch.sigmoid(-x)),
    "tanh": (te.tanh, torch.tanh),
    "gelu (tanh)": (_tanh_gelu, _exact_tanh_gelu),
    "gelu (erf)": (
        lambda x: one(0.5) * x * (one() + te.erf(one(0.5**0.5) * x)),
        lambda x: 0.5 * x * torch.special.erfc(-(0.5**0.5) * x),
    ),
    "silu": (lambda x: x * te.sigmoid(x), lambda x: x * torch.sigmoid(x)),
    "relu": (lambda x: te.max(x, one(0)), torch.relu),  # with the rounding, by one instruction
}


def build(form: Callable[[Any], Any], dtype: str, functions: str) -> Any:
    """Return a kernel of `form` over a matrix of float32."""
    a, b = (te.placeholder((SIZE, 64), "float16", name=x) for x in "AB")
    given = te.placeholder((SIZE, SIZE), "float32", name="given")
    k = te.reduce_axis((0, 64), "k")
    c = te.compute(
        (SIZE, SIZE),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[j, k].astype("float32"), axis=k),
        name="C",
    )
    d = te.compute((SIZE, SIZE), lambda i, j: form(c[i, j] + given[i, j]).astype(dtype), name="D")
    func = te.create_prim_func([a, b, given, d]).with_attr("global_symbol", "main")
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(128, 128, 64), consumers=2, store="tma"))
    with tvm.transform.PassContext(config={"tvm_hopper.functions": functions}):
        return tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]


def arguments() -> Any:
    """Return numbers around zero, of every magnitude, and the ends of the range."""
    generator = torch.Generator(device="cuda").manual_seed(5)
    count = SIZE * SIZE // 4
    near = torch.linspace(-12, 12, count, device="cuda", dtype=torch.float64).float()
    normal = torch.randn(count, generator=generator, device="cuda")
    wide = torch.linspace(-100, 100, count, device="cuda", dtype=torch.float64).float()
    bits = torch.randint(-(2**31), 2**31, (count,), generator=generator, device="cuda")
    every = torch.cat([near, normal, wide, bits.to(torch.int32).view(torch.float32)])
    infinity = float("inf")
    ends = [0.0, -0.0, infinity, -infinity, float("nan"), 1e-45, -1e-45, 1e-38, 3e38, -3e38, 0.4]
    every[: len(ends)] = torch.tensor(ends, device="cuda")
    return every.view(SIZE, SIZE)


def spacing(value: Any, dtype: Any) -> Any:
    """Return the distance of the numbers of a type around values of float64."""
    digits, least = (11, -14) if dtype == torch.float16 else (8, -126)
    exponent = torch.frexp(value.abs().clamp(min=2.0**least)).exponent - 1
    return torch.ldexp(torch.ones_like(value), exponent - digits + 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_what_is_rounded_to_16_bits_is_right_to_them(name, dtype):
    form, exact = FORMS[name]
    given, kind = arguments(), getattr(torch, dtype)
    zero = torch.zeros(SIZE, 64, device="cuda", dtype=torch.float16)
    want = exact(given.double())
    errors = {}
    stated = [row.error for row in ACTIVATIONS[dtype] if row.form == name]  # of a whole activation
    beside = BESIDE if stated else TINY
    most = 0.55 + sum(stated) * 2 ** (11 if dtype == "float16" else 8)
    for functions in ("short", "library"):
        out = torch.full((SIZE, SIZE), 77.0, device="cuda", dtype=kind)
        build(form, dtype, functions)(zero, zero, given, out)
        torch.cuda.synchronize()
        judged = want.isfinite() & (want.abs() < torch.finfo(kind).max)
        off = ((out.double() - want).abs() - beside) / spacing(want, kind)
        errors[functions] = float(off[judged].max())
        # what no finite number of the type is near to: infinities, and what is no number
        plain = [x[~judged].double().nan_to_num(9, 8, 7) for x in (out, want.to(kind))]
        assert torch.equal(*plain), (functions, given[~judged], out[~judged])
    print(f"{name} {dtype}: {errors}")
    assert errors["short"] < max(most, errors["library"])
