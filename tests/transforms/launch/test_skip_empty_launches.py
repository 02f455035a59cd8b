"""SkipEmptyLaunches: a grid without thread blocks is not launched."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

from tests.transforms.scripts import check, parse, run
from tvm_hopper import schedule as hs
from tvm_hopper.simulation import simulate
from tvm_hopper.transforms.launch.skip_empty_launches import SkipEmptyLaunches

HOST = """
@T.prim_func(private=True, s_tir=True)
def func(x: T.handle("float32"), n: T.int32):
    T.func_attr({"calling_conv": 1})
    count: T.let[T.int32] = T.call_packed("tvm_hopper.count_blocks", 40, 1)
    T.call_ffi_kernel("a", x, n, (n + 3) // 4, 128, launch_params=["blockIdx.x", "threadIdx.x"],
                      ret_ty="int32")
    T.call_ffi_kernel("b", x, n, 7, n, 32, T.int64(64), launch_params=["blockIdx.x", "blockIdx.y",
                      "threadIdx.x", "tirx.use_programtic_dependent_launch",
                      "tirx.use_dyn_shared_memory"], ret_ty="int32")
    T.call_ffi_kernel("c", x, n, count, 128, launch_params=["blockIdx.x", "threadIdx.x"],
                      ret_ty="int32")
    if n > 2:
        T.call_ffi_kernel("d", x, n, n - 2, launch_params=["blockIdx.x"], ret_ty="int32")
    if n > -9:
        T.call_ffi_kernel("e", x, n, n, launch_params=["blockIdx.x"], ret_ty="int32")
"""
GUARDED = """
@T.prim_func(private=True, s_tir=True)
def func(x: T.handle("float32"), n: T.int32):
    T.func_attr({"calling_conv": 1})
    count: T.let[T.int32] = T.call_packed("tvm_hopper.count_blocks", 40, 1)
    if (n + 3) // 4 > 0:
        T.call_ffi_kernel("a", x, n, (n + 3) // 4, 128,
                          launch_params=["blockIdx.x", "threadIdx.x"], ret_ty="int32")
    if n > 0:
        T.call_ffi_kernel("b", x, n, 7, n, 32, T.int64(64), launch_params=["blockIdx.x",
                          "blockIdx.y", "threadIdx.x", "tirx.use_programtic_dependent_launch",
                          "tirx.use_dyn_shared_memory"], ret_ty="int32")
    T.call_ffi_kernel("c", x, n, count, 128, launch_params=["blockIdx.x", "threadIdx.x"],
                      ret_ty="int32")
    if n > 2:
        T.call_ffi_kernel("d", x, n, n - 2, launch_params=["blockIdx.x"], ret_ty="int32")
    if n > -9:
        if n > 0:
            T.call_ffi_kernel("e", x, n, n, launch_params=["blockIdx.x"], ret_ty="int32")
"""


def test_grids_that_may_be_empty_are_guarded():
    """Not those that are counted, of known size, or filled by a condition around them."""
    check(run(parse(HOST), SkipEmptyLaunches()), parse(GUARDED))


def test_again_finds_nothing():
    got = run(parse(HOST), SkipEmptyLaunches())
    assert run(got, SkipEmptyLaunches()).same_as(got)


def test_functions_that_are_not_packed_stay():
    other = parse(HOST, ('"calling_conv": 1', '"calling_conv": 2'))
    assert run(other, SkipEmptyLaunches()).same_as(other)


@pytest.mark.parametrize("target", ["nvidia/nvidia-h200", "nvidia/nvidia-a100"])
def test_no_rows_where_threads_copy(target):
    """TVM's ThreadSync synchronises such a kernel, and refuses to under a condition."""
    a = te.placeholder((te.var("n"), 64), "float32", name="A")
    c = te.compute(a.shape, lambda i, j: a[i, j] * te.const(2, "float32"), name="C")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([a, c])}))
    tile = sch.cache_read("C", 0, "shared.dyn")
    i, j = sch.get_loops("C")
    block, step, row = sch.split(i, [None, 2, 8])
    sch.bind(block, "blockIdx.x")
    sch.compute_at(tile, step)
    hs.async_copy(sch, tile, "none")
    sch.bind(sch.split(sch.fuse(row, j), [None, 128])[1], "threadIdx.x")
    for rows in (0, 17):
        given = np.arange(rows * 64, dtype="float32").reshape(rows, 64)
        result = simulate(sch.mod, {"A": given}, target=target)
        assert result.verdict == "clean", result.findings
        np.testing.assert_array_equal(result.outputs["C"], given * 2)
