"""A product by mma.sync whose depth a call brings: fewer trips than slots, none at all."""

# mypy: disable-error-code="valid-type"

import functools

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.sim_kernels.kernels import RUNS
from tvm_hopper.simulation import Program, load, simulate, verify
from tvm_hopper.testing import tensor_cores
from tvm_hopper.testing.tensor_cores import WarpTiling


@T.prim_func(s_tir=True)
def product(a: T.handle, b: T.handle, c: T.handle, n: T.int32):
    """Compute C = A B of depth 16 n."""
    T.func_attr({"global_symbol": "main", "tirx.noalias": True})
    A = T.match_buffer(a, (32, n * 16), "float16")
    B = T.match_buffer(b, (n * 16, 32), "float16")
    C = T.match_buffer(c, (32, 32), "float32")
    for i, j, k in T.grid(32, 32, n * 16):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vk, vj])


@functools.cache
def kernel(mechanism: str) -> Program:
    """Return the kernel, of three slots."""
    tiling = WarpTiling((32, 32, 16), (2, 2), stages=3, load=mechanism)
    return load(tensor_cores.schedule(tvm.IRModule({"main": product}), tiling).mod)


@pytest.mark.parametrize("mechanism", ["tma", "cp_async"])
@pytest.mark.parametrize("trips", [0, 1, 2, 3, 5])
def test_any_number_of_trips(trips, mechanism):
    rng = np.random.default_rng(trips)
    shapes = {"A": (32, 16 * trips), "B": (16 * trips, 32)}
    values = {name: rng.integers(-3, 4, x).astype("float16") for name, x in shapes.items()}
    result = simulate(kernel(mechanism), {**values, "n": trips})
    assert not result.findings, "\n".join(map(str, result.findings))
    want = tensor_cores.reference(values["A"], values["B"])
    np.testing.assert_array_equal(result.outputs["C"].astype(float), want)
    if trips:
        verify(kernel(mechanism), {**values, "n": trips}, RUNS, max_ctas=2).require_clean()
