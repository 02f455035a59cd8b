"""MetaSchedule's own entries with our space, postproc, mutator and strategy."""

import logging
import sys
import types
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tests.meta_schedule.stand_ins import formula
from tvm_hopper import meta_schedule as hms, schedule as hs
from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule.annotations import configurations_of
from tvm_hopper.meta_schedule.matmul_problems import as_matmul
from tvm_hopper.meta_schedule.scheduling import canonical
from tvm_hopper.meta_schedule.spaces import (
    by_dlight,
    explicit_designs,
    sampled_products,
    sampled_sizes,
    violations,
)
from tvm_hopper.meta_schedule.strategies import configuration_in, find_problem
from tvm_hopper.testing import memory_bound, workloads

H200 = Target("nvidia/nvidia-h200")
PRODUCT = canonical(workloads.matmul(256, 256, 256, out_dtype="float16")["main"])
FOREIGN = canonical(workloads.matmul(64, 64, 64, dtype="float32", cast="none")["main"])


@pytest.fixture
def quick(monkeypatch):
    """TVM's TuneContext imports all tensor intrinsics, which takes 20 s and is not needed."""
    name = "tvm.s_tir.tensor_intrin"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    from tvm.s_tir.meta_schedule import tir_integration

    quiet = logging.getLogger("tvm_hopper.tests.quiet")
    loggers = lambda work_dir, names: [quiet for _ in names]  # noqa: E731
    monkeypatch.setattr(tir_integration, "get_loggers_from_work_dir", loggers)


@pytest.fixture(scope="module")
def designs():
    return sampled_products(PRODUCT, as_matmul(PRODUCT["main"], H200))


def test_sizes_are_sampled_and_read_off_the_trace(designs):
    assert len(designs) == 5
    for sch in designs:
        rows, columns, depth, last = sampled_sizes(sch.trace)
        assert rows in (64, 128, 192, 256)
        assert columns in (32, 64, 96, 128, 192, 256)
        assert depth in (64, 128)
        assert 1 <= last <= 7
    assert sampled_sizes(s_tir.Schedule(PRODUCT).trace) is None


def test_what_no_chip_holds_is_refused_before_it_is_built(designs):
    seen = {True: 0, False: 0}
    postproc, mutate = hms.RefuseIllegal(), hms.MutateSample(3)
    for sch in designs:
        trace = sch.trace
        for _ in range(6):
            trace = mutate.apply(trace)
            changed = s_tir.Schedule(PRODUCT)
            trace.apply_to_schedule(changed, remove_postproc=False)
            legal = not violations(changed)
            assert postproc.apply(changed) == legal
            seen[legal] += 1
    assert min(seen.values()) > 0


def test_a_mutation_changes_one_decision(designs):
    trace = designs[0].trace
    before = sampled_sizes(trace)
    after = sampled_sizes(hms.MutateSample(1).apply(trace))
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
    assert hms.MutateSample().apply(s_tir.Schedule(PRODUCT).trace) is None


def test_other_schedules_pass():
    problem = as_matmul(PRODUCT["main"], H200)
    assert violations(problem.schedule(hs.MatmulConfig())) == []
    assert violations(by_dlight(FOREIGN, H200)) == []


def test_kernels_over_rows_have_explicit_designs():
    mod = canonical(memory_bound.rms_norm(64, 256)["main"])
    made = explicit_designs(find_problem(mod, H200))
    assert len(made) > 8
    assert all(configurations_of(x) for x in made)


@tvm.ir.utils.derived_object
class TextBuilder(ms.builder.PyBuilder):
    """Names the kernel by its trace's text."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.count = 0

    def build(self, build_inputs):
        found = []
        for one in build_inputs:
            self.count += 1
            path = self.folder / f"{self.count}"
            path.mkdir()
            (path / "kernel").write_text(str(tvm_ffi.structural_hash(one.mod)))
            found.append(ms.builder.BuilderResult(str(path / "kernel"), None))
        return found


@tvm.ir.utils.derived_object
class TextRunner(ms.runner.PyRunner):
    def run(self, runner_inputs):
        return [self.one(str(x.artifact_path)) for x in runner_inputs]

    def one(self, path):
        result = ms.runner.RunnerResult([formula(Path(path).read_text())], None)
        return ms.runner.RunnerFuture(lambda: True, lambda: result)


def stock_tune(mod, folder, space, strategy, trials=6):
    for name in ("built", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return ms.tir_integration.tune_tir(
        mod,
        H200,
        str(folder / "work"),
        trials,
        num_trials_per_iter=3,
        builder=TextBuilder(folder / "built"),
        runner=TextRunner(),
        cost_model="random",
        space=space,
        strategy=strategy,
        num_tuning_cores=1,
        seed=1,
    )


def test_stock_tuning_with_sampled_traces(quick, tmp_path):
    database = stock_tune(PRODUCT, tmp_path, hms.space(), "replay-trace")
    records = database.get_all_tuning_records()
    assert len(records) >= 3
    sch = s_tir.Schedule(PRODUCT)
    records[0].trace.apply_to_schedule(sch, remove_postproc=False)
    assert tvm.compile(sch.mod, target=H200)


def test_stock_tuning_with_our_strategy(quick, tmp_path):
    mod = canonical(memory_bound.copy(64, 256)["main"])
    space, strategy = hms.space(explicit=True), hms.ConfigurationStrategy()
    database = stock_tune(mod, tmp_path, space, strategy)
    found = [configuration_in(x.trace) for x in database.get_all_tuning_records()]
    assert len(set(found)) == len(found) == 6
    assert hs.PointwiseConfig() in found
    again = stock_tune(mod, tmp_path / "again", space, strategy.clone())
    assert len(again.get_all_tuning_records()) == 6


def test_our_strategy_goes_on_with_a_stock_database(quick, tmp_path):
    mod = canonical(memory_bound.copy(64, 256)["main"])
    database = stock_tune(mod, tmp_path, hms.space(explicit=True), hms.ConfigurationStrategy(), 3)
    first = {configuration_in(x.trace) for x in database.get_all_tuning_records()}
    strategy = hms.ConfigurationStrategy()
    context = ms.TuneContext(mod, target=H200, num_threads=1)
    strategy._initialize_with_tune_context(context)
    strategy.pre_tuning(4, 4, [], database, None)
    fresh = [configurations_of(x.sch)[0] for x in strategy.generate_measure_candidates()]
    assert len(fresh) == 4
    assert not set(fresh) & first


def test_foreign_functions_get_the_schedule_of_dlight(quick, tmp_path):
    for explicit, strategy in ((False, "replay-trace"), (True, hms.ConfigurationStrategy())):
        space = hms.space(explicit=explicit)
        database = stock_tune(FOREIGN, tmp_path / str(explicit), space, strategy, trials=2)
        (record,) = {str(x.trace): x for x in database.get_all_tuning_records()}.values()
        sch = s_tir.Schedule(FOREIGN)
        record.trace.apply_to_schedule(sch, remove_postproc=False)
        assert "tvm_hopper" not in sch.mod.script()


@pytest.mark.parametrize("explicit", [False, True])
def test_symbolic_extents_are_one_error(explicit):
    mod = canonical(workloads.matmul("n", 64, 64, out_dtype="float16")["main"])
    with pytest.raises(TuningError, match=r"found symbolic extents n; need .*; tvm_hopper\.tune"):
        hms.space(explicit=explicit).generate_design_space(mod)
