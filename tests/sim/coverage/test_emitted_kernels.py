"""Kernels that the project and TVM emit are proven for every CTA, with nothing left out."""

import time
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te
from tvm.s_tir import dlight

from tvm_hopper import schedule as hs
from tvm_hopper.sim import run_host
from tvm_hopper.sim.coverage import check_every_cta, check_outputs
from tvm_hopper.sim.launch.arguments import complete
from tvm_hopper.sim.launch.tensors import Pointer
from tvm_hopper.simulation import load
from tvm_hopper.testing import pointwise, tensor_cores, workloads
from tvm_hopper.testing.forms import FORMS

SLOW = pytest.mark.slow
SMALL = hs.MatmulConfig(tile=(64, 64, 64), stages=2, consumers=1)


def prove(module: tvm.IRModule, output: str, inputs: dict[str, Any] | None = None) -> list[str]:
    """Check every CTA of every launch; returns what was proven."""
    program = load(module)
    values, _ = complete(program.arguments, inputs or {})
    arrays = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
    coverages = []
    for launch in run_host(program.host, values, 132, program.arch):
        func = program.kernels[launch.kernel]
        coverages.append(check_every_cta(func, launch.bind(func), arrays))
    holes, covered = check_outputs(coverages, [output], arrays)
    findings = [one for coverage in coverages for one in coverage.findings]
    assert not [*findings, *holes], "\n".join(map(str, [*findings, *holes]))
    assert covered == [output]
    return [coverage.text for coverage in coverages]


def matmul(config: hs.MatmulConfig | None, *shape: Any, **problem: Any) -> tvm.IRModule:
    sch = s_tir.Schedule(workloads.matmul(*shape, **problem))
    hs.matmul(sch, "C", config)
    return sch.mod


@pytest.mark.parametrize(
    "shape", [(4096, 4096, 4096), (1000, 520, 264), (256, 256, 256), (1, 4096, 4096), (72, 8, 16)]
)
def test_default_matmuls(shape: tuple[int, int, int]) -> None:
    (text,) = prove(matmul(None, *shape), "C")
    assert "stores to C disjoint" in text


@pytest.mark.parametrize(
    "rows", [1000, pytest.param(1, marks=SLOW), pytest.param(4096, marks=SLOW)]
)
def test_a_symbolic_matmul(rows: int) -> None:
    array = {"A": np.zeros((rows, 512), "float16")}
    prove(matmul(None, "M", 512, 512), "C", array)


@pytest.mark.parametrize(
    "config",
    [
        {"persistent": 7},
        {"persistent": hs.BY_DEVICE, "raster": 4},
        pytest.param({"raster": 3}, marks=SLOW),
        {"raster": hs.Raster(8, "hilbert")},
        {"consumers": 2, "tile": (128, 64, 64)},
    ],
    ids=str,
)
def test_orders_of_tiles(config: dict[str, Any]) -> None:
    config = {"tile": (64, 64, 64), "stages": 2, **config}
    prove(matmul(hs.MatmulConfig(**config), 600, 328, 128), "C")


def test_epilogues_and_batches() -> None:
    prove(matmul(SMALL, 200, 136, 64, batch=True), "C")
    mod = workloads.matmul(200, 136, 64, epilogue=("bias_col", "relu", "residual"))
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", SMALL)
    prove(sch.mod, mod["main"].params[-1].name)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("shape", [(128, 128, 64), (100, 104, 72)], ids=["exact", "ragged"])
@pytest.mark.parametrize("form", [form for form in FORMS if form != "slices"])
def test_forms(form: str, shape: tuple[int, int, int]) -> None:
    sch = s_tir.Schedule(FORMS[form](*shape, "float16"))
    hs.matmul(sch, "C", SMALL)
    arguments = [a.name for a in load(sch.mod).arguments if a.shape is not None]
    prove(sch.mod, arguments[-1])


def test_a_product_into_a_part_of_an_output_covers_that_part_alone() -> None:
    sch = s_tir.Schedule(FORMS["slices"](100, 104, 72, "float16"))
    hs.matmul(sch, "C", SMALL)
    with pytest.raises(AssertionError, match=r"C: 5376 of 15776 elements are never written"):
        prove(sch.mod, "C")


@pytest.mark.parametrize("name", ["exp_add", "add_row_bias"])
@pytest.mark.parametrize("shape", [(64, 128), (100, 260)], ids=str)
def test_pointwise_kernels(name: str, shape: tuple[int, int]) -> None:
    mod = getattr(pointwise, name)(*shape, "float32")
    sch = pointwise.schedule(mod, pointwise.Tiling())
    prove(sch.mod, mod["main"].params[-1].name)


def test_a_product_on_mma_sync() -> None:
    mod = tensor_cores.matmul(128, 128, 64, "float16", "float32", True)
    sch = tensor_cores.schedule(mod, tensor_cores.WarpTiling())
    prove(sch.mod, mod["main"].params[-1].name)


def test_kernels_of_tvm_s_own_schedules() -> None:
    a = te.placeholder((1000, 72), "float32", name="A")
    k = te.reduce_axis((0, 72), "k")
    b = te.compute((72, 1000), lambda i, j: a[j, i] * te.const(2, "float32"), name="B")
    c = te.compute((1000,), lambda i: te.sum(a[i, k], k), name="C")
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}):
        for args in ([a, b], [a, c]):
            module = tvm.IRModule({"main": te.create_prim_func(args)})
            module = dlight.ApplyDefaultSchedule(
                dlight.gpu.Reduction(), dlight.gpu.Transpose(), dlight.gpu.Fallback()
            )(module)
            prove(module, args[-1].op.name)


def test_the_default_matmul_of_4096_takes_milliseconds() -> None:
    program = load(matmul(None, 4096, 4096, 4096))
    arrays = {
        **{name: np.empty((4096, 4096), "float16") for name in "AB"},
        "C": np.empty((4096, 4096), "float32"),
    }
    (launch,) = run_host(program.host, arrays, 132, program.arch)
    func = program.kernels[launch.kernel]
    took = []
    for _ in range(4):
        start = time.process_time()
        coverage = check_every_cta(func, launch.bind(func), arrays)
        check_outputs([coverage], ["C"], arrays)
        took.append(time.process_time() - start)
    assert min(took) < 0.05


MILLION = """
@T.prim_func(s_tir=True, check_well_formed=False)
def main(C_ptr: T.handle("float32", "global")):
    T.func_attr({"global_symbol": "main"})
    C = T.decl_buffer((SIZE,), data=C_ptr)
    bx = T.launch_thread("blockIdx.x", 1048576)
    tx = T.launch_thread("threadIdx.x", 64)
BODY
"""
RAGGED = """
    for i in range(16):
        if (bx//8192*8+bx%8192%8)*16+i < 16380 and bx%8192//8*64+tx < 65530:
            C[((bx//8192*8+bx%8192%8)*16+i)*65530+bx%8192//8*64+tx] = T.float32(0)
"""


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("    C[bx*64+tx] = T.float32(0)", (1 << 26,)),
        ("    if bx*64+tx < 67108801:\n        C[bx*64+tx] = T.float32(0)", (67108801,)),
        (RAGGED, (16380, 65530)),
    ],
    ids=["row", "ragged row", "ragged tiles in groups"],
)
def test_a_million_ctas_take_less_than_a_second(body: str, shape: tuple[int, ...]) -> None:
    array = np.empty(shape, "float32")
    text = MILLION.replace("SIZE", str(array.size)).replace("BODY", body.strip("\n")).strip()
    setup = {
        "params": {"C_ptr": Pointer("C")},
        "grid": (1 << 20, 1, 1),
        "block": (64, 1, 1),
        "cluster": (1, 1, 1),
    }
    func = tvm.script.from_source(text)
    took = []
    for _ in range(2):
        start = time.process_time()
        coverage = check_every_cta(func, setup, {"C": array})
        took.append(time.process_time() - start)
        assert not coverage.findings
        assert coverage.text.startswith("1048576 CTAs: indices of 1 statement in bounds")
        assert check_outputs([coverage], ["C"], {"C": array}) == ([], ["C"])
    assert min(took) < 1
