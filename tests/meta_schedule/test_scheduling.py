"""A function and a configuration make a schedule, or one error."""

import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te

from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError, TuningError
from tvm_hopper.meta_schedule.scheduling import canonical, reductions_of, schedule_with
from tvm_hopper.testing import memory_bound, workloads
from tvm_hopper.testing.tiling import product_of


def test_names_and_attributes_do_not_tell_functions_apart():
    func = workloads.matmul(64, 64, 64)["main"]
    other = func.with_attr("global_symbol", "matmul7").with_attr("op_pattern", 4)
    hashes = {tvm_ffi.structural_hash(canonical(x)) for x in (func, other)}
    assert len(hashes) == 1


def test_reductions_are_listed():
    sch = s_tir.Schedule(canonical(memory_bound.softmax(64, 64)["main"]))
    assert reductions_of(sch) == ["M", "S"]


def test_a_configuration_that_does_not_fit_is_refused():
    func = workloads.matmul(64, 64, 64)["main"]
    with pytest.raises(ScheduleError, match=r"block C"):
        schedule_with(func, hs.PointwiseConfig())
    with pytest.raises(ScheduleError, match="stages"):
        schedule_with(func, hs.MatmulConfig((256, 128, 64), stages=8))
    with pytest.raises(ScheduleError, match="no reduction"):
        schedule_with(memory_bound.copy(64, 64)["main"], hs.MatmulConfig())
    with pytest.raises(ScheduleError, match="no reduction"):
        schedule_with(memory_bound.copy(64, 64)["main"], [(64, hs.MatmulConfig())])
    with pytest.raises(ScheduleError, match="size classes of M"):
        schedule_with(func, [(16, hs.MatmulConfig()), (64, hs.MatmulConfig())])


def test_what_is_no_configuration_is_refused():
    func = workloads.matmul(64, 64, 64)["main"]
    with pytest.raises(TuningError, match="found str"):
        schedule_with(func, "matmul")
    for found in ([], [(16, hs.PointwiseConfig())]):
        with pytest.raises(TuningError, match=r"need \(rows, MatmulConfig\) pairs"):
            schedule_with(func, found)


def test_a_block_outside_of_every_kernel_is_refused():
    a, b, c = product_of(64, 64, 64)
    x = te.placeholder((64,), "float32", name="X")
    d = te.compute((64,), lambda i: x[i] + te.const(1, "float32"), name="D")
    func = te.create_prim_func([a, b, x, c, d])
    with pytest.raises(ScheduleError, match=r"block D.*a block outside of every kernel"):
        schedule_with(func, hs.MatmulConfig())


def test_one_class_that_leaves_all_open_is_one_kernel():
    func = workloads.matmul("m", 128, 128)["main"]
    sch = schedule_with(func, [(64, hs.MatmulConfig())])
    assert isinstance(sch.mod["main"].body.block.body, (tvm.tirx.For, tvm.tirx.SeqStmt))
