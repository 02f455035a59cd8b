"""Configurations that hs.matmul took and ptxas refused, or mended: each is assembled as it is."""

from typing import Any

import numpy as np
import pytest
import tvm
import tvm.script
from tvm import s_tir
from tvm.script import tirx as T

import tvm_hopper
from tests.sim_kernels.kernels import multiply_by_hand
from tvm_hopper import capture, schedule as hs
from tvm_hopper.cuda_build import records
from tvm_hopper.errors import CompileError, LoweringError
from tvm_hopper.testing import workloads

TARGET = "nvidia/nvidia-h200"


def built(m: Any, n: int, k: int, tile: tuple[int, int, int] | None, form: dict, **config: Any):
    """Compile a matmul; return the executable, its inputs by name, and the module."""
    mod = workloads.matmul(m, n, k, **form)
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", hs.MatmulConfig(tile=tile, **config) if tile else None)
    return tvm.compile(sch.mod, target=TARGET), mod


def check(ex: Any, mod: tvm.IRModule, form: dict, **extents: int) -> None:
    """Assemble a kernel without a remark, run it and judge it under every policy."""
    records.cubin(ex)
    inputs = workloads.make_inputs(mod, **extents)
    names = [p.name for p in mod["main"].params if tvm.tirx.is_buffer_var(p)]
    arrays = dict(zip(names[:-1], inputs, strict=True))
    result = tvm_hopper.simulate(ex, arrays)
    want = workloads.reference(inputs, form.get("layout", "NT"), form.get("epilogue", ()))
    np.testing.assert_array_equal(result.outputs[names[-1]].astype("float64"), want)
    result.require_clean()
    assert tvm_hopper.verify(ex, arrays).verdict == "clean"


# The product runs once and each consumer has several chains of WGMMA: C7517 and C7519.
ONCE = {
    "rows of two instructions": (128, 64, 64, (128, 64, 64), {}, {"consumers": 1}),
    "ragged": (100, 72, 40, (128, 64, 64), {"epilogue": ("relu",)}, {"consumers": 1}),
    "columns of two instructions": (64, 88, 64, (64, 88, 64), {"layout": "NN"}, {"consumers": 1}),
    "one step": (128, 64, 16, (128, 64, 16), {"dtype": "bfloat16"}, {"consumers": 1}),
    "two consumers, persistent": (
        300, 136, 64, (256, 128, 64), {"layout": "TN"}, {"consumers": 2, "persistent": 2},
    ),
    "three consumers": (384, 64, 64, (384, 64, 64), {"layout": "TT"}, {"consumers": 3}),
    "symbolic rows": ("m", 64, 64, (128, 64, 64), {}, {"consumers": 1, "persistent": 2}),
}  # fmt: skip


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", ONCE)
def test_a_product_that_runs_once(name: str) -> None:
    m, n, k, tile, form, config = ONCE[name]
    if form.get("layout", "N")[0] == "T" and isinstance(m, int):
        m = -(-m // 8) * 8
    ex, mod = built(m, n, k, tile, form, stages=1, **config)
    check(ex, mod, form, **({"m": 200} if m == "m" else {}))


def test_a_default_configuration_that_runs_once() -> None:
    ex, _ = built(7640, 1640, 64, None, {"dtype": "bfloat16"})
    records.cubin(ex)


@pytest.mark.parametrize("trips", [0, 1, 2])
def test_a_symbolic_depth_adds_to_zeros(trips: int) -> None:
    """The number of trips is known at run time alone: nothing of it may be overwritten."""
    ex, mod = built(64, 64, "k", (64, 64, 64), {"layout": "TN"}, stages=2, consumers=1)
    if trips:
        check(ex, mod, {"layout": "TN"}, k=64 * trips)
    else:
        arrays = {"A": np.zeros((0, 64), "float16"), "B": np.zeros((0, 64), "float16")}
        assert not tvm_hopper.simulate(ex, arrays).outputs["C"].any()


FILLED = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((128, 64), "float16"), B: T.Buffer((64, 64), "float16"),
         C: T.Buffer((128, 64), "float32")):
    for i, j, kk in T.grid(128, 64, 64):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, kk])
            with T.init():
                C[vi, vj] = VALUE
            C[vi, vj] = C[vi, vj] + T.cast(A[vi, vk], "float32") * T.cast(B[vj, vk], "float32")
"""


@pytest.mark.parametrize("value", ["T.float32(1)", 'T.cast(vi * 3 + vj, "float32")'])
def test_a_product_that_runs_once_from_another_value(value: str) -> None:
    sch = s_tir.Schedule(
        tvm.script.from_source(FILLED.replace("VALUE", value), extra_vars={"T": T})
    )
    i, j, k = sch.get_loops("C")
    (k0, k1), (j0, j1) = sch.split(k, [None, 64]), sch.split(j, [None, 64])
    i0, group, i1 = sch.split(i, [None, 1, 128])
    sch.reorder(i0, j0, group, k0, i1, j1, k1)
    for loop, axis in ((i0, "blockIdx.y"), (j0, "blockIdx.x"), (group, "threadIdx.y")):
        sch.bind(loop, axis)
    multiply_by_hand(sch, group, k0)
    ex = tvm.compile(sch.mod, target=TARGET)
    records.cubin(ex)
    a, b = workloads.make_inputs(workloads.matmul(128, 64, 64))
    rows, columns = np.ogrid[:128, :64]
    start = 1.0 if "float32(1)" in value else rows * 3.0 + columns
    result = tvm_hopper.simulate(ex, {"A": a, "B": b})
    want = a.astype("float64") @ b.astype("float64").T + start
    np.testing.assert_array_equal(result.outputs["C"], want)
    assert tvm_hopper.verify(ex, {"A": a, "B": b}).verdict == "clean"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("columns", "width"), [(208, 104), (256, 128)])
def test_wide_tiles_of_three_consumers(columns: int, width: int) -> None:
    """C7602: 512 threads leave ptxas 128 registers, too few for 64 x 208 in one instruction."""
    ex, mod = built(192, columns, 128, (192, columns, 64), {}, stages=2, consumers=3)
    check(ex, mod, {})
    (kernel,) = tvm_hopper.explain(ex).kernels
    assert f"m64n{width}k16" in kernel.product.instruction
    (fallback,) = kernel.fallbacks
    assert f"instructions of {width} columns instead of {columns}" in fallback


def test_a_narrower_instruction_is_refused_where_fallbacks_are() -> None:
    sch = s_tir.Schedule(workloads.matmul(192, 256, 128))
    hs.matmul(sch, "C", hs.MatmulConfig(tile=(192, 256, 64), stages=2, consumers=3))
    strict = sch.mod["main"].with_attr("tvm_hopper.strict", True)
    match = "tvm_hopper.strict: found instructions of 128 columns instead of 256.*take 2 consumers"
    with pytest.raises(LoweringError, match=match):
        tvm.compile(tvm.IRModule({"main": strict}), target=TARGET)


def spilling(strict: bool) -> Any:
    """Three consumers, each with the error function of 84 accumulators."""
    mod = workloads.matmul(576, 336, 256, out_dtype="float16", epilogue=("gelu",))
    sch = s_tir.Schedule(mod)
    config = hs.MatmulConfig(
        tile=(192, 168, 64), stages=4, consumers=3, persistent=0, raster=1, wgmma_pending=0
    )
    hs.matmul(sch, "C", config)
    func = sch.mod["main"].with_attr("tvm_hopper.strict", strict)
    func = func.with_attr("tvm_hopper.functions", "library")  # short ones spill nothing
    return tvm.compile(tvm.IRModule({"main": func}), target=TARGET)


def test_a_few_spills_of_the_epilogue_are_reported() -> None:
    ex = spilling(strict=False)
    records.cubin(ex)
    (kernel,) = tvm_hopper.explain(ex).kernels
    assert kernel.assembled.spill_bytes > 0
    assert "registers are spilled in the epilogue" in kernel.fallbacks[-1]


def test_a_few_spills_are_refused_where_fallbacks_are() -> None:
    ex = spilling(strict=True)
    assert capture.lookup(ex).strict
    with pytest.raises(CompileError, match=r"bytes of spill stores .*need none"):
        records.cubin(ex)
