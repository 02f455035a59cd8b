"""A function or a module with a kernel of ours and another: ours is lowered, the other is TVM's."""

import functools

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

import tvm_hopper
from tvm_hopper import capture, pipeline, schedule as hs
from tvm_hopper.simulation import simulate

TARGET = "nvidia/nvidia-h200"
M, N, K = 72, 40, 64


def both(scope="shared.dyn"):
    """Return a function of two kernels: C = A B and Y = 2 X."""
    a = te.placeholder((M, K), "float16", "A")
    b = te.placeholder((N, K), "float16", "B")
    x = te.placeholder((M, N), "float32", "X")
    k = te.reduce_axis((0, K), "k")
    c = te.compute(
        (M, N),
        lambda i, j: te.sum(a[i, k].astype("float32") * b[j, k].astype("float32"), axis=k),
        name="C",
    )
    y = te.compute((M, N), lambda i, j: x[i, j] * te.const(2, "float32"), name="Y")
    func = te.create_prim_func([a, b, x, c, y])
    sch = s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    bind_other(sch, scope)
    hs.matmul(sch, "C", hs.MatmulConfig((64, 16, 64), stages=2, consumers=1))
    return sch.mod


def bind_other(sch, scope):
    """Bind the elementwise kernel, through a shared buffer of its own."""
    i, j = sch.get_loops("Y")
    sch.bind(i, "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    staged = sch.cache_read("Y", 0, scope)
    sch.compute_at(staged, i)
    sch.bind(sch.get_loops(staged)[-1], "threadIdx.x")


def alone(scope="shared.dyn"):
    """Return a function of the other kernel alone."""
    x = te.placeholder((M, N), "float32", "X")
    y = te.compute((M, N), lambda i, j: x[i, j] * te.const(2, "float32"), name="Y")
    func = te.create_prim_func([x, y])
    sch = s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    bind_other(sch, scope)
    return sch.mod


def inputs():
    rng = np.random.default_rng(0)
    return {
        "A": rng.integers(-2, 3, (M, K)).astype("float16"),
        "B": rng.integers(-2, 3, (N, K)).astype("float16"),
        "X": rng.integers(-9, 9, (M, N)).astype("float32"),
    }


@pytest.mark.parametrize("scope", ["shared", "shared.dyn"])
def test_both_kernels_of_a_function_compute(scope):
    values = inputs()
    result = simulate(both(scope), values)
    assert not result.findings
    want = values["A"].astype(float) @ values["B"].astype(float).T
    np.testing.assert_array_equal(result.outputs["C"], want)
    np.testing.assert_array_equal(result.outputs["Y"], 2 * values["X"])


@pytest.mark.parametrize("scope", ["shared", "shared.dyn"])
def test_the_other_kernel_is_what_tvm_makes_of_it(scope):
    ours = pipeline.lower_final(both(scope), TARGET).device
    bodies = [func.body for func in ours.functions.values() if "mbarrier" not in func.script()]
    plain = [
        func.body for func in pipeline.lower_final(alone(scope), TARGET).device.functions.values()
    ]
    assert len(bodies) == len(plain) == 1
    tvm.ir.assert_structural_equal(bodies[0], plain[0], map_free_vars=True)


def test_functions_of_a_module_are_lowered_apart():
    mod = tvm.IRModule({"gemm": both()["main"], "other": alone()["main"]})
    mod = tvm.IRModule(
        {name: mod[name].with_attr("global_symbol", name) for name in ("gemm", "other")}
    )
    source = capture.lookup(tvm.compile(mod, target=TARGET)).source
    assert "other_kernel" not in source  # TVM compiles it apart
    assert "gemm_kernel" in source


def test_two_kernels_of_ours_in_a_function():
    """Each has its own ring, tensor maps and order of tiles."""

    def product(a, b, name):
        k = te.reduce_axis((0, 64), f"k_{name}")
        return te.compute(
            (a.shape[0], b.shape[0]),
            lambda i, j: te.sum(a[i, k].astype("float32") * b[j, k].astype("float32"), axis=k),
            name=name,
        )

    shapes = {"A": (128, 64), "B": (32, 64), "D": (16, 64)}
    a, b, d = (te.placeholder(shape, "float16", name) for name, shape in shapes.items())
    func = te.create_prim_func([a, b, d, product(a, b, "E"), product(a, d, "F")])
    sch = s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    hs.matmul(sch, "E", hs.MatmulConfig((64, 16, 64), stages=2, consumers=1, raster=2))
    hs.matmul(sch, "F", hs.MatmulConfig((64, 16, 16), stages=3, consumers=2, wgmma_pending=1))
    rng = np.random.default_rng(0)
    values = {name: rng.integers(-2, 3, shape).astype("float16") for name, shape in shapes.items()}
    result = simulate(sch.mod, values)
    assert not result.findings
    for name, right in (("E", "B"), ("F", "D")):
        want = values["A"].astype(float) @ values[right].astype(float).T
        np.testing.assert_array_equal(result.outputs[name], want)


def test_types_of_shared_memory_are_told_apart():
    """CUDA takes `extern __shared__ T name[]` with one T in all kernels of a text."""

    def total(tensors, i, j):
        return sum(z[i, j].astype("float32") for z in tensors)

    kernels = {}
    for name, dtype in (("whole", "float32"), ("half", "float16"), ("both", None)):
        x, y = (te.placeholder((64, 64), dtype or t, "X") for t in ("float32", "float16"))
        tensors = [x] if dtype else [x, y]
        out = te.compute((64, 64), functools.partial(total, tensors))
        sch = s_tir.Schedule(te.create_prim_func([*tensors, out]))
        block = sch.get_child_blocks(sch.get_sblock("root"))[0]
        i, j = sch.get_loops(block)
        sch.bind(i, "blockIdx.x")
        sch.bind(j, "threadIdx.x")
        for index in range(len(tensors)):
            staged = sch.cache_read(block, index, "shared.dyn")
            sch.compute_at(staged, i)
            hs.async_copy(sch, staged, "cp_async")
        kernels[name] = sch.mod["main"].with_attr("global_symbol", name)
    ex = tvm.compile(tvm.IRModule(kernels), target=TARGET)
    (record,) = capture.lookup_all(ex)
    declared = {line.strip() for line in record.source.splitlines() if "extern __shared__" in line}
    assert len(declared) == 3, declared
    assert tvm_hopper.cubin(ex)
