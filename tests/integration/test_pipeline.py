"""The pass list: TVM's own, with ours at its places."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext

from tvm_hopper import LoweringError, VerifyError, pipeline
from tvm_hopper.pipeline.run import run_passes
from tvm_hopper.requests import keys, marks
from tvm_hopper.testing import copies, workloads

from . import _programs

H200 = "nvidia/nvidia-h200"
CONFIGS = [
    {},
    {"tirx.use_async_copy": True},
    {"tirx.disable_storage_rewrite": True},
    {"tirx.disable_cse_tir": True, "tirx.disable_vectorize": True},
]


LISTS = {
    "early_passes": ("Early",),
    "hook_passes": ("First", "Second"),
    "late_passes": ("Late",),
    "host_passes": ("Host",),
}


def ours() -> tvm.IRModule:
    sch = _programs.add_one()
    sch.annotate(sch.get_sblock("B"), keys.ASYNC_COPY, "tma")
    return sch.mod


def named(name: str, seen: list[str] | None = None):
    @tvm.transform.module_pass(opt_level=0, name=name)
    def _pass(mod, _ctx):
        if seen is not None:
            seen.extend(gv.name_hint for gv in mod.functions)
        return mod

    return _pass


@pytest.fixture
def marked_passes(monkeypatch) -> None:
    for place, names in LISTS.items():
        passes = [named(f"ours.{name}") for name in names]
        monkeypatch.setattr(pipeline.passes, place, lambda passes=passes: passes)


@pass_instrument
class Recorder:
    """Remember every pass that runs."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, _mod, info) -> None:
        self.names.append(info.name)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.usefixtures("marked_passes")
def test_our_passes_stand_at_their_places(config) -> None:
    with PassContext(config=config):
        names = [p.info.name for p in pipeline.full_list()]
        stock = [p.info.name for p in pipeline.passes.stock_passes()]
    hook, late = names.index("ours.First"), names.index("ours.Late")
    assert (names[0], names[-1]) == ("ours.Early", "ours.Host")
    assert names[hook : hook + 3] == ["ours.First", "ours.Second", "s_tir.InjectSoftwarePipeline"]
    assert names[late - 1] == "s_tir.InjectDoubleBuffer"
    rewrites = "tirx.disable_storage_rewrite" not in config
    assert (names[late + 1] == "tirx.StorageRewrite") is rewrites
    assert [name for name in names if not name.startswith("ours.")] == stock


def test_real_lists_are_named_and_short_to_read() -> None:
    passes = [p for place in LISTS for p in getattr(pipeline.passes, place)()]
    names = [p.info.name for p in passes]
    assert all(name.startswith("tvm_hopper.") for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.usefixtures("marked_passes")
def test_lowering_can_stop_after_or_before_a_pass() -> None:
    seen = Recorder()
    with PassContext(instruments=[seen]):
        pipeline.lower(ours(), H200, until="ours.Second")
        assert seen.names[-1] == "ours.Second"
        pipeline.lower(ours(), H200, before="tirx.SplitHostDevice")
        assert seen.names[-1] == "s_tir.MergeSharedMemoryAllocations"
        before_hook = pipeline.lower_to_hook(ours(), H200)
    tvm.ir.assert_structural_equal(before_hook, pipeline.lower(ours(), H200, before="ours.First"))
    with pytest.raises(ValueError, match=r"found no pass named 'ours\.Third'; need one of \["):
        pipeline.lower(ours(), H200, until="ours.Third")


def test_a_schedule_is_taken_as_its_module() -> None:
    sch = copies.schedule(copies.copy(256, 256), copies.Route())
    for take in (pipeline.lower_to_hook, pipeline.lower):
        tvm.ir.assert_structural_equal(take(sch, H200), take(sch.mod, H200))


def test_lowering_needs_a_target() -> None:
    with pytest.raises(ValueError, match="found no target; need one as argument or a `with target"):
        pipeline.lower(ours())
    with tvm.target.Target(H200):
        assert pipeline.lower_to_hook(ours()).functions


@pytest.mark.usefixtures("plain_lowering")
def test_final_modules_are_split_and_finalised() -> None:
    final = pipeline.lower_final(ours()["main"], H200)
    assert [gv.name_hint for gv in final.host.functions] == ["main"]
    assert [gv.name_hint for gv in final.device.functions] == ["main_kernel"]
    assert marks.is_marked(final.device["main_kernel"])
    assert marks.is_marked(final.host["main"])


def test_our_passes_see_our_functions_alone(monkeypatch) -> None:
    seen: dict[str, list[str]] = {place: [] for place in LISTS}
    for place, names in seen.items():
        passes = [named(f"ours.{place}", names)]
        monkeypatch.setattr(pipeline.passes, place, lambda passes=passes: passes)
    plain = _programs.add_one().mod["main"].with_attr("global_symbol", "plain")
    mine = ours()["main"].with_attr("global_symbol", "mine")
    mod = tvm.IRModule({"plain": plain, "mine": mine})
    pipeline.lower(mod, H200)
    pipeline.lower(tvm.IRModule({"plain": plain}), H200)
    assert {place: sorted(names) for place, names in seen.items()} == {
        "early_passes": ["mine"],
        "hook_passes": ["mine"],
        "late_passes": ["mine"],
        "host_passes": ["mine", "mine_kernel"],
    }


@pytest.mark.usefixtures("plain_lowering")
def test_a_broken_pass_is_named_when_checks_are_on(monkeypatch) -> None:
    @tirx.transform.prim_func_pass(opt_level=0, name="ours.Breaks")
    def breaks(func, _mod, _ctx):
        stray = tirx.Var("stray", "int32")
        return func.with_body(tirx.Evaluate(stray))

    monkeypatch.setattr(pipeline.passes, "hook_passes", lambda: [breaks])
    monkeypatch.setenv("TVM_HOPPER_VERIFY", "1")
    with pytest.raises(VerifyError, match=r"main after ours\.Breaks: found IR that is not well"):
        pipeline.lower(ours(), H200, until="ours.Breaks")
    monkeypatch.setenv("TVM_HOPPER_VERIFY", "0")
    pipeline.lower(ours(), H200, until="ours.Breaks")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("shape", [(512, 512, 512), ("m", 1000, 264), (8192, 8192, 512)], ids=str)
def test_real_kernels_are_well_formed_after_each_pass(monkeypatch, shape) -> None:
    from tvm import s_tir

    from tvm_hopper import schedule as hs
    from tvm_hopper.testing import workloads

    monkeypatch.setenv("TVM_HOPPER_VERIFY", "1")
    sch = s_tir.Schedule(workloads.matmul(*shape))
    hs.matmul(sch, "C")
    pipeline.lower_final(sch.mod, H200)


@pytest.mark.parametrize("name", ["s_tir.Fails", "tvm_hopper.Fails"])
def test_a_pass_of_tvms_that_fails_is_named(name):
    def fail(func, mod, ctx):
        raise ValueError("Check failed")

    bad = tirx.transform.prim_func_pass(fail, opt_level=0, name=name)
    with pytest.raises((ValueError, LoweringError)) as error:
        run_passes([bad], copies.copy(8, 8))
    said = isinstance(error.value, LoweringError)
    assert said == name.startswith("s_tir")
    if said:
        assert "functions main: found that TVM's own pass s_tir.Fails fails" in str(error.value)
        assert isinstance(error.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Check failed: (x < y) is false: Literal value 1 exceeds", "Literal value 1 exceeds"),
        ("Check failed: n == 0 (1 vs. 0) : no barrier here", "no barrier here"),
        ("Check failed: x", "x"),
        ("Check failed: x: y\n\nError in pass: s_tir.Fails\n\n# a function\n  ^^^", "y"),
        ("a rule: is broken", "a rule: is broken"),
    ],
)
def test_of_a_check_of_tvms_what_it_says_is_told(said, told):
    def fail(func, mod, ctx):
        raise ValueError(said)

    bad = tirx.transform.prim_func_pass(fail, opt_level=0, name="s_tir.Fails")
    with pytest.raises(LoweringError) as error:
        run_passes([bad], copies.copy(8, 8))
    assert f"s_tir.Fails fails ({told}); need" in str(error.value)


def test_of_several_functions_the_one_that_fails_is_named():
    def fail(func, mod, ctx):
        if len(func.params) == 3:
            raise ValueError("first line\nCheck failed: divide by zero")
        return func

    bad = tirx.transform.prim_func_pass(fail, opt_level=0, name="s_tir.Fails")
    mod = tvm.IRModule({"one": copies.copy(8, 8)["main"], "two": workloads.matmul(8, 8, 8)["main"]})
    with pytest.raises(LoweringError, match=r"^functions two: .* \(.*divide by zero\); need"):
        run_passes([bad], mod)
