"""Rows that begin at any element, several rows of a thread, and few long rows, on a GPU."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, topi

from tvm_hopper import ir, schedule as hs
from tvm_hopper.testing import memory_bound

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

POISON = 12345.0
TOLERANCE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}
SHAPES = [
    (2048, 50257),
    (300001, 151),
    (999, 4571),
    (74, 100277),
    (6, 50264),
    (100003, 64),
    (7, 33),
]


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "rms_norm", "row_sum", "row_max"])
def test_values_and_margins(name, shape, dtype):
    sch = s_tir.Schedule(memory_bound.ROW_REDUCTIONS[name](*shape, dtype))
    hs.row_reduction(sch)
    kernel = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    kind, out = getattr(torch, dtype), sch.mod["main"].params[-1]
    given = [torch.randn(shape, device="cuda").to(kind)]
    if name == "rms_norm":
        given.append(torch.randn(shape[1:], device="cuda").to(kind))
    size = [int(x) for x in out.shape]
    count = int(np.prod(size))
    kept = torch.full((count + 64,), POISON, device="cuda", dtype=getattr(torch, ir.dtype_of(out)))
    got = kept[32 : 32 + count].view(size)
    kernel(*map(tvm.runtime.from_dlpack, [*given, got]))
    torch.cuda.synchronize()
    assert bool((kept[:32] == POISON).all() and (kept[32 + count :] == POISON).all())
    x = given[0].double()
    plain = {
        "softmax": lambda: torch.softmax(x, -1),
        "log_softmax": lambda: torch.log_softmax(x, -1),
        "rms_norm": lambda: x * torch.rsqrt((x * x).mean(-1, True) + 1e-5) * given[1].double(),
        "row_sum": lambda: x.sum(-1),
        "row_max": lambda: x.amax(-1),
    }
    want = plain[name]()
    spacing = torch.finfo(got.dtype).smallest_normal * torch.finfo(got.dtype).eps
    error = ((got.double() - want).abs() - spacing).clamp(min=0)  # of softmax in float16: denormals
    scale = want.abs() + want.abs().mean() / 10 + 1e-6
    assert float((error / scale).max()) < TOLERANCE[dtype]


@pytest.mark.parametrize("shape", [(100003, 64), (5001, 151), (33, 50257)], ids=str)
def test_the_place_of_a_maximum(shape):
    x = te.placeholder(shape, "float16", "X")
    func = te.create_prim_func([x, topi.argmax(x, -1)]).with_attr("global_symbol", "main")
    hs.row_reduction(sch := s_tir.Schedule(hs.widen_sums(tvm.IRModule({"main": func}))))
    kernel = tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]
    given = torch.randn(shape, device="cuda").half()
    got = torch.empty(shape[:1], device="cuda", dtype=torch.int32)
    kernel(*map(tvm.runtime.from_dlpack, (given, got)))
    torch.cuda.synchronize()
    found = given.gather(-1, got.long().unsqueeze(-1)).squeeze(-1)
    assert bool((found == given.amax(-1)).all())
