"""The pipeline by its name, the switch for plain builds, and what is not a model for them."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
import warnings

import pytest
import tvm
from tvm import relax, tirx
from tvm.ir.transform import PassContext
from tvm.relax.backend.cuda import pipeline as stock
from tvm.script import ir as I, relax as R
from tvm.target import Target

import tvm_hopper
from tests.relax import models
from tvm_hopper import schedule as hs
from tvm_hopper.dlight import rule
from tvm_hopper.errors import HopperWarning, LoweringError, OptionError
from tvm_hopper.relax import disable, enable, report, schedule_functions
from tvm_hopper.relax.options import CLASSES, ModelOptions
from tvm_hopper.relax.records import GIVEN, LIBRARY, OURS, STOCK
from tvm_hopper.relax.tuned import TunedChoice, find_tuned
from tvm_hopper.testing.llama import SMALL, llama
from tvm_hopper.testing.relax_forms import model_of


@I.ir_module
class Linear:
    @R.function
    def main(
        x: R.Tensor((1, "s", 72), "float16"),
        w: R.Tensor((96, 72), "float16"),
        b: R.Tensor((96,), "float16"),
    ):
        with R.dataflow():
            y = R.add(R.matmul(x, R.permute_dims(w)), b)
            out = R.nn.relu(y)
            R.output(out)
        return out


def elementwise():
    """Return a model without a product: for it TVM's rules import no intrinsics."""
    return model_of(relax.op.nn.relu, ((64, 128), "float32"))


def build(mod=Linear, target=models.H200, pipeline="tvm_hopper", **options):
    if options:
        pipeline = relax.get_pipeline(pipeline, **options)
    return relax.build(mod, target=Target(target), relax_pipeline=pipeline)


@pytest.fixture
def switch():
    yield
    disable()


# -- roads that lead there --------------------------------------------------


def test_by_name():
    ex = tvm.compile(Linear, target=Target(models.H200), relax_pipeline="tvm_hopper")
    (one,) = report(ex).functions
    assert one.computed_by == OURS
    assert one.product.columns == 96
    assert "transpose" not in ex.as_text()
    assert "wgmma" in tvm_hopper.capture.cuda_sources(ex)[0]


def test_classes_by_default_and_by_the_model():
    (one,) = report(Linear, models.H200).functions
    assert [x.rows for x in one.kernels] == list(CLASSES)
    (one,) = report(Linear, models.H200, classes=None).functions
    assert {x.rows for x in one.kernels} == {*hs.choose_ranges(96, 72).values()}


def test_one_kernel_by_option():
    (one,) = report(build(classes=())).functions
    assert len(one.kernels) == 1
    (one,) = report(build(classes=(8, 64))).functions
    assert [x.rows for x in one.kernels] == [8, 64]
    assert one.kernels[0].launched_for == "rows <= 8"
    (one,) = report(build(classes={8: 8, 64: 64, 96: 8, 256: 64})).functions
    assert [x.launched_for for x in one.kernels] == ["rows <= 8 or 65 <= rows <= 96",
                                                    "9 <= rows <= 64 or rows >= 97"]  # fmt: skip


def test_sums_as_the_model_says():
    with pytest.warns(HopperWarning, match="0% of its operations"):
        (one,) = report(build(accumulate=None)).functions
    assert one.computed_by == STOCK
    refused = dict(one.refused)
    assert "found a sum in float16; need a sum in float32" in refused["Matmul"]


def test_the_module_is_left_as_it_was():
    mod = llama(SMALL, attention="none")
    before = mod.script()
    models.schedule(mod)
    assert mod.script() == before


# -- the switch --------------------------------------------------


def texts(ex):
    return tvm_hopper.capture.cuda_sources(ex)


@pytest.mark.usefixtures("switch")
def test_plain_builds_are_ours_when_switched_on():
    plain = texts(build(pipeline="default"))
    enable(classes=(8, 64))
    ex = build(pipeline="default")
    assert report(ex).functions[0].computed_by == OURS
    enable(classes=(16,))  # other options
    assert len(report(build(pipeline="default")).functions[0].kernels) == 1
    a100 = Target("nvidia/nvidia-a100")
    assert "ApplyDefaultSchedule" in [x.info.name for x in stock.legalize_passes(a100)]
    disable()
    assert texts(build(pipeline="default")) == plain
    disable()  # once more is nothing
    assert not hasattr(stock.legalize_passes, "switch_of")


@pytest.mark.usefixtures("switch")
def test_the_switch_in_many_threads():
    before = stock.legalize_passes
    threads = [threading.Thread(target=enable) for _ in range(16)]
    threads += [threading.Thread(target=disable) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    enable()
    assert stock.legalize_passes.switch_of is before  # not a wrapper around a wrapper
    disable()
    assert stock.legalize_passes is before


@pytest.mark.usefixtures("switch")
def test_both_names_of_tvms_list_are_switched():
    enable()
    target = Target(models.H200)
    for passes in (stock.legalize_passes(target), relax.pipeline.legalize_passes(target)):
        assert "tvm_hopper.FlattenBatch" in [x.info.name for x in passes]


def test_without_either_nothing_of_ours_is_there():
    assert not any("wgmma" in text for text in texts(build(pipeline="default")))


def test_the_name_costs_no_import():
    code = (
        "import sys, tvm, tvm_hopper; from tvm import relax;"
        "assert 'tvm_hopper' in relax.pipeline.PIPELINE_MAP;"
        "assert not [x for x in sys.modules if x.startswith(('tvm_hopper.relax', "
        "'tvm_hopper.dlight', 'tvm_hopper.schedule'))]"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


# -- what it is not for --------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*tvm_hopper.*")
@pytest.mark.parametrize("target", ["nvidia/nvidia-a100", {"kind": "cuda", "arch": "sm_90"}])
def test_other_targets_are_tvms(target):
    ex = build(elementwise(), target)
    assert texts(ex) == texts(build(elementwise(), target, "default"))


def test_another_target_is_told():
    with pytest.warns(UserWarning, match="found target cuda sm_80; need cuda sm_90a"):
        build(elementwise(), "nvidia/nvidia-a100")


def test_an_arch_without_its_a_is_told_once():
    rule.warn_of_generic_arch.cache_clear()
    target = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}
    with pytest.warns(UserWarning, match="sm_90a"):
        build(elementwise(), target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(elementwise(), target)


def test_a_processor_is_told():
    with pytest.warns(UserWarning, match="found target llvm; need cuda sm_90a"):
        build(target="llvm")


def test_graphs_on_request():
    """Calls between an input and the result are captured; without the option none is."""
    for graph in (False, True):
        with Target(models.H200):
            made = relax.get_pipeline("tvm_hopper", graph=graph)(models.layers(2, 64, 256))
        text = made["forward"].script()
        assert text.count("cuda_graph.run_or_capture") == (2 if graph else 0)  # x is added between


def test_no_target():
    with pytest.raises(OptionError, match=r"found no target; need a cuda target with arch sm_90a"):
        relax.get_pipeline("tvm_hopper")(Linear)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tiles": 3}, r"found option tiles; need one of accumulate, classes, database, batch_"),
        ({"accumulate": "float64"}, r"found accumulate='float64'; need 'float32', or None"),
        ({"database": 5}, r"found database=5, of type int; need the work_dir of a tuning"),
        ({"batch_invariant": 1}, r"found batch_invariant=1; need True or False"),
        ({"graph": "yes"}, r"found graph='yes'; need True or False"),
        ({"database": "/no/such/folder"}, r"which is no folder; need the work_dir of a tuning"),
    ],
)
def test_options_that_cannot_be(options, message):
    for ask in (lambda: relax.get_pipeline("tvm_hopper", **options), lambda: enable(**options)):
        with pytest.raises(OptionError, match=message):
            ask()


def test_classes_that_cannot_be():
    with pytest.raises(tvm_hopper.HopperError, match="classes"):
        ModelOptions(classes=(64, 16))
    with pytest.raises(tvm_hopper.ScheduleError, match="found classes=16; need ascending ints"):
        ModelOptions(classes=16)


@pytest.mark.skipif(tvm.cuda(0).exist, reason="there is a GPU")
def test_no_gpu():
    ex = build()  # builds all the same
    with pytest.raises(RuntimeError, match="CUDA"):
        relax.VirtualMachine(ex, tvm.cuda(0))


def test_a_module_without_a_product():
    (one,) = report(build(elementwise())).functions
    assert one.computed_by == OURS
    assert one.product is None


def test_a_module_without_functions_of_its_own():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 128), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    assert report(build(builder.finalize())).functions == ()


@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_weights_of_other_types(dtype):
    mod = model_of(relax.op.matmul, ((64, 128), dtype), ((128, 96), dtype))
    with pytest.warns(HopperWarning, match=rf"matmul: Matmul: .*found {dtype}.*; need "):
        (one,) = report(build(mod)).functions
    assert one.computed_by == STOCK
    assert dict(one.refused)["Matmul"]
    strict = PassContext(config={"tvm_hopper.strict": True})
    with strict, pytest.raises(LoweringError, match=r"model, tvm_hopper\.strict: found 0%"):
        build(mod)


def test_a_function_that_is_scheduled_already():
    with Target(models.H200):
        mod = relax.transform.FuseTransposeMatmul()(Linear)
        mod = relax.get_pipeline("zero")(mod)
        (gv,) = (gv for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc))
        sch = tvm.s_tir.Schedule(mod[gv])
        hs.matmul(sch, "NT_matmul", hs.MatmulConfig((64, 64, 64), accumulate="float32"))
        ours = sch.mod["main"].without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
        mod.update_func(gv, ours)
    ex = build(mod)
    (one,) = report(ex).functions
    assert (one.computed_by, one.rule) == (OURS, "scheduled already")
    with Target(models.H200):
        by_tvm = stock.legalize_passes(Target.current())[-1](relax.get_pipeline("zero")(Linear))
    given = report(build(by_tvm)).functions
    assert {x.computed_by for x in given} == {GIVEN}


def test_libraries_stay_libraries():
    out = relax.TensorType((64, 96), "float16")
    mod = model_of(
        lambda x: relax.call_dps_packed("my_library.gemm", [x], out), ((64, 128), "float16")
    )
    mod = models.schedule(mod)
    (one,) = report(mod).functions
    assert (one.name, one.computed_by) == ("my_library.gemm", LIBRARY)
    assert "dispatched before our pipeline" in str(report(mod))


# -- tuned configurations --------------------------------------------------


@pytest.fixture
def lookup(monkeypatch):
    """Stand in for the reader of databases; the answer can be set."""
    found = types.SimpleNamespace(answer=None, asked=[])

    def answer(database, func, target):
        found.asked.append((database, func, target))
        return found.answer

    module = types.ModuleType("tvm_hopper.meta_schedule")
    module.lookup, module.Database = answer, lambda folder: folder
    monkeypatch.setitem(sys.modules, "tvm_hopper.meta_schedule", module)
    return found


def test_a_tuned_configuration(lookup, tmp_path):
    lookup.answer = hs.MatmulConfig((64, 96, 64), stages=3, consumers=1, accumulate="float32")
    ex = build(database=str(tmp_path))
    (kernel,) = report(ex).functions[0].kernels
    assert "64x96x64" in kernel.configuration
    ((database, func, target),) = lookup.asked
    assert database == str(tmp_path)
    assert isinstance(func, tirx.PrimFunc)
    assert target.attrs["arch"] == "sm_90a"


def test_tuned_classes(lookup, tmp_path):
    lookup.answer = [(16, hs.MatmulConfig((64, 16, 64))), (512, hs.MatmulConfig((128, 96, 64)))]
    (one,) = report(build(database=str(tmp_path))).functions
    assert [x.rows for x in one.kernels] == [16, 512]


REFUSED_CONFIGS = [
    hs.MatmulConfig((64, 96, 64), stages=60, consumers=1),
    hs.MatmulConfig((64, 96, 64), split_k=2, stages=2),  # beside batch_invariant
    hs.PointwiseConfig(),
    [(16, hs.MatmulConfig((64, 16, 64), stages=60)), (512, hs.MatmulConfig((128, 96, 64)))],
]


@pytest.mark.parametrize("answer", REFUSED_CONFIGS, ids=["ring", "bits", "rule", "classes"])
def test_a_tuned_configuration_that_does_not_fit(lookup, tmp_path, answer):
    lookup.answer = answer
    plain = report(Linear, models.H200, classes=(16, 64), batch_invariant=True).functions[0]
    found = report(
        Linear, models.H200, classes=(16, 64), batch_invariant=True, database=str(tmp_path)
    )
    (one,) = found.functions
    assert one.kernels == plain.kernels
    note, _, more = one.note.partition("; tuned configuration not used: ")
    assert note == plain.note
    assert more
    assert "tuned" in str(found)


def test_nothing_tuned(lookup, tmp_path):
    assert report(build(database=str(tmp_path))).functions[0].computed_by == OURS
    assert lookup.asked


def test_an_answer_that_is_none(lookup, tmp_path):
    lookup.answer = ["64x64"]
    with pytest.raises(OptionError, match=r"need a configuration, or \(bound, "):
        build(database=str(tmp_path))


def test_nobody_reads_databases(monkeypatch):
    monkeypatch.setitem(sys.modules, "tvm_hopper.meta_schedule", None)
    with pytest.raises(OptionError, match=r"tvm_hopper\.meta_schedule\.lookup, which"):
        find_tuned("work", "linear", None, None)
    assert find_tuned(None, "linear", None, None) == TunedChoice()


def test_a_rule_that_returns_two_functions(monkeypatch):
    class Doubling:
        def apply(self, func, target, tunable):
            named = func.with_attr("global_symbol", "main")
            return tvm.s_tir.Schedule(tvm.IRModule({"main": named, "other": named}))

    monkeypatch.setattr(schedule_functions.dlight, "rules", lambda *_, **__: [Doubling()])
    with pytest.raises(tvm_hopper.HopperError, match="found 2 functions in the schedule of Doubl"):
        models.schedule(elementwise())


def test_an_attention_that_nobody_wrote():
    with pytest.raises(ValueError, match="attention 'flash': need one of plain, paged, none"):
        llama(SMALL, attention="flash")
