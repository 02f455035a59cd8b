"""Reductions to global memory in bulk, on a GPU: every operation and type, against numpy."""

import numpy as np
import pytest
import tvm

from tvm_hopper.facts.reductions import BITWISE, LEGAL
from tvm_hopper.testing import reductions

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

ROWS, WIDTH, PARTS = 96, 4096 + 256, 24  # 34 blocks of columns, each updated by 24
RUNS = 5
FORMS = [
    (mechanism, operation, dtype)
    for mechanism, operations in LEGAL.items()
    for operation, dtypes in operations.items()
    for dtype in dtypes
]
# Of a sum of 96 normal numbers, each of 25 updates rounded to the type.
TOLERANCE = {"float16": 0.3, "bfloat16": 2.5, "float32": 1e-4, "float64": 1e-12}


@pytest.fixture(scope="module", autouse=True)
def _gpu():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")


def build(mechanism, operation, dtype):
    parts = PARTS if operation in BITWISE else None
    mod = reductions.columns(ROWS, WIDTH, dtype, operation, parts)
    sch = reductions.schedule(mod, reductions.Split(PARTS, mechanism=mechanism))
    return tvm.compile(sch.mod, target="nvidia/nvidia-h200")["main"]


@pytest.mark.parametrize(("mechanism", "operation", "dtype"), FORMS)
def test_every_operation(mechanism, operation, dtype):
    run = build(mechanism, operation, dtype)
    if "int" in dtype:
        check_integers(run, operation, dtype)
        return
    x = torch.randn(ROWS, WIDTH, device="cuda").to(getattr(torch, dtype))
    s = torch.empty(WIDTH, dtype=x.dtype, device="cuda")
    wide = x.double()
    want = {"add": wide.sum(0), "min": wide.amin(0), "max": wide.amax(0)}[operation]
    for _ in range(RUNS):
        s.fill_(float("nan"))
        run(x, s)
        torch.cuda.synchronize()
        worst = (s.double() - want).abs().max().item()
        assert worst <= (TOLERANCE[dtype] if operation == "add" else 0)


def check_integers(run, operation, dtype):
    info = np.iinfo(dtype)
    x = np.random.default_rng(7).integers(info.min, info.max, (ROWS, WIDTH), dtype, endpoint=True)
    named = {"add": np.add, "min": np.minimum, "max": np.maximum}
    named |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    want = named[operation].reduce(x, 0, dtype=dtype)
    if (operation, dtype) == ("and", "uint64"):
        want &= np.uint64((1 << 63) - 1)  # what the program starts from
    device = tvm.cuda(0)
    dx, ds = tvm.runtime.tensor(x, device), tvm.runtime.tensor(np.full(WIDTH, 77, dtype), device)
    for _ in range(RUNS):
        run(dx, ds)
        device.sync()
        np.testing.assert_array_equal(ds.numpy(), want)


def test_the_initial_value_is_set_in_replayed_graphs():
    import tvm_ffi

    run = build("tma", "add", "float32")
    x = torch.randn(ROWS, WIDTH, device="cuda")
    s = torch.empty(WIDTH, device="cuda")
    run(x, s)
    graph = torch.cuda.CUDAGraph()
    with tvm_ffi.use_torch_stream(torch.cuda.graph(graph)):
        run(tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(s))
    for _ in range(RUNS):
        x.normal_()
        s.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(s.double(), x.double().sum(0), rtol=0, atol=1e-4)
