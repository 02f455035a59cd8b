"""A kernel carries its configuration: through traces and JSON, and without a change of code."""

from dataclasses import replace

import pytest
import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule.annotations import annotate, configurations_of
from tvm_hopper.meta_schedule.scheduling import canonical, schedule_with
from tvm_hopper.requests.keys import CONFIGURATION
from tvm_hopper.testing import memory_bound, workloads

TARGET = "nvidia/nvidia-h200"
CASES = {
    "matmul": (workloads.matmul(128, 128, 128), hs.MatmulConfig((64, 128, 64), consumers=1)),
    "rows": (memory_bound.rms_norm(128, 256), hs.RowReductionConfig(threads=32)),
    "elements": (memory_bound.silu_mul(128, 256), hs.PointwiseConfig()),
}


def source(mod):
    return tvm.compile(mod, target=TARGET).mod.imports[0].inspect_source()


@pytest.mark.parametrize("name", CASES)
def test_code_is_that_of_a_kernel_without(name):
    mod, config = CASES[name]
    sch = schedule_with(mod["main"], config)
    assert configurations_of(sch) == configurations_of(sch.mod) == [config]
    plain = sch.copy()
    (loop,) = [
        loop
        for block in plain.get_child_blocks(plain.get_sblock("root"))[:1]
        for loop in plain.get_loops(block)
        if CONFIGURATION in plain.get(loop).annotations
    ]
    plain.unannotate(loop, CONFIGURATION)
    assert configurations_of(plain) == []
    assert source(sch.mod) == source(plain.mod)


@pytest.mark.parametrize("name", CASES)
def test_a_record_carries_it(name, tmp_path):
    mod, config = CASES[name]
    plain = canonical(mod["main"])
    sch = schedule_with(mod["main"], config)
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    workload = database.commit_workload(plain)
    database.commit_tuning_record(ms.database.TuningRecord(sch.trace, workload, [1e-6], None, None))
    again = ms.database.JSONDatabase(work_dir=str(tmp_path))
    (record,) = again.get_top_k(again.commit_workload(plain), 1)
    replayed = s_tir.Schedule(plain)
    record.trace.apply_to_schedule(replayed, remove_postproc=False)
    assert configurations_of(replayed) == [config]
    tvm.ir.assert_structural_equal(replayed.mod, sch.mod)


def test_explain_tells_it():
    mod, config = CASES["matmul"]
    (kernel,) = tvm_hopper.explain(schedule_with(mod["main"], config), target=TARGET).kernels
    assert kernel.configuration == "matmul consumers=1 tile=64x128x64"
    assert "tuned" in str(tvm_hopper.explain(schedule_with(mod["main"], config), target=TARGET))


def test_each_class_carries_its_own():
    mod = workloads.matmul("m", 128, 128)
    configs = [hs.MatmulConfig((64, 64, 64), consumers=1), hs.MatmulConfig((128, 64, 64))]
    sch = schedule_with(mod["main"], list(zip((64, 512), configs, strict=True)))
    first, second = configurations_of(sch)
    assert first == replace(configs[0], split_k="cluster")  # runners have no allocator
    assert second.tile == (128, 64, 64)
    assert second.persistent == hs.BY_DEVICE  # it also runs above 512 rows


def test_a_schedule_without_a_kernel_is_refused():
    with pytest.raises(TuningError, match="found no kernel without a configuration"):
        annotate(s_tir.Schedule(CASES["matmul"][0]), hs.MatmulConfig())


def test_an_annotation_that_is_none_is_refused():
    mod, config = CASES["elements"]
    sch = schedule_with(mod["main"], config)
    loop = sch.get_loops(sch.get_child_blocks(sch.get_sblock("root"))[0])[0]
    sch.unannotate(loop, CONFIGURATION)
    sch.annotate(loop, CONFIGURATION, "nonsense")
    with pytest.raises(TuningError, match="need one of the kinds"):
        configurations_of(sch)
