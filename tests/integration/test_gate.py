"""What the gate lets through, sends to our pipeline, or refuses."""

from __future__ import annotations

import pytest
import tvm
from tvm.ir.transform import PassContext
from tvm.target import Target

import tvm_hopper
from tvm_hopper import LoweringError, pipeline
from tvm_hopper.requests import keys, marks, options

from . import _programs

H200 = "nvidia/nvidia-h200"


def annotated(name: str = keys.ASYNC_COPY, value: object = "tma", place: str = "block"):
    sch = _programs.add_one()
    block = sch.get_sblock("B")
    sch.annotate(block if place == "block" else sch.get_loops(block)[0], name, value)
    return sch


@pytest.fixture
def lowered(monkeypatch, plain_lowering) -> list[str]:
    """Record which functions reach our first pass, and change nothing."""
    seen: list[str] = []

    @tvm.transform.module_pass(opt_level=0, name="tvm_hopper.Spy")
    def spy(mod, _ctx):
        seen.extend(gv.name_hint for gv in mod.functions)
        return mod

    monkeypatch.setattr(pipeline.passes, "hook_passes", lambda: [spy])
    return seen


@pytest.mark.parametrize("road", ["tvm.compile", "tvm.build", "tirx.build", "tirx.build(None)"])
def test_every_road_leads_to_our_pipeline(lowered, road: str) -> None:
    mod, target = annotated().mod, Target(H200)
    match road:
        case "tvm.compile":
            tvm.compile(mod, target=target)
        case "tvm.build":
            with pytest.warns(DeprecationWarning, match="build is deprecated"):
                tvm.build(mod, target=target)
        case "tirx.build":
            tvm.tirx.build(mod, target=target)
        case _:
            tvm.tirx.build(mod, target=target, pipeline=None)
    assert lowered == ["main"]


def test_the_pipeline_has_a_name(lowered) -> None:
    tvm.compile(annotated().mod, target=H200, tir_pipeline="tvm_hopper")
    assert lowered == ["main"]


def test_relax_build_leads_to_our_pipeline(lowered) -> None:
    from tvm import relax

    func = annotated().mod["main"].with_attr("global_symbol", "add")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1024,), "float32"))
    gv = builder.add_func(func, "add")
    with builder.function("main", [x]):
        out = builder.emit(relax.call_tir(gv, [x], relax.TensorType((1024,), "float32")))
        builder.emit_func_output(out)
    mod = builder.finalize()
    with Target(H200):
        tvm.compile(mod, target=Target(H200, host="llvm"), relax_pipeline="default")
    assert lowered == ["add"]


def test_only_functions_that_ask_are_lowered(lowered) -> None:
    plain, ours = (s.mod["main"] for s in (_programs.add_one(), annotated()))
    mod = tvm.IRModule(
        {
            "plain": plain.with_attr("global_symbol", "plain"),
            "ours": ours.with_attr("global_symbol", "ours"),
        }
    )
    executable = tvm.compile(mod, target=H200)
    assert lowered == ["ours"]
    record = tvm_hopper.capture.lookup(executable)
    assert record.kernels == ("ours_kernel",)
    assert {gv.name_hint for gv in record.host.functions} == {"plain", "ours"}


def test_a_function_attribute_asks_too(lowered) -> None:
    func = _programs.add_one().mod["main"].with_attr(keys.STRICT, True)
    tvm.compile(tvm.IRModule({"main": func}), target=H200)
    assert lowered == ["main"]


def test_async_pipelines_are_ours_only_when_asked(lowered) -> None:
    mod = _programs.pipelined_matmul(True).mod
    text = tvm.compile(mod, target=H200).mod.imports[0].inspect_source()
    with PassContext(config={keys.ASYNC_COPY: "auto"}):
        tvm.compile(mod, target=H200)
        assert lowered == ["main"]
        tvm.compile(_programs.pipelined_matmul(False).mod, target=H200)
        tvm.compile(_programs.add_cpu().mod, target="llvm")
    assert lowered == ["main"]
    assert tvm.compile(mod, target=H200).mod.imports[0].inspect_source() == text


def test_async_attribute_without_annotated_copies_is_refused() -> None:
    func = _programs.add_one().mod["main"].with_attr(keys.ASYNC_COPY, "tma")
    with pytest.raises(LoweringError, match=r"main, attribute: found .* without a copy into sha"):
        tvm.compile(tvm.IRModule({"main": func}), target=H200)


def test_async_option_refuses_an_arch_that_cannot() -> None:
    mod = _programs.pipelined_matmul(True).mod
    with (
        PassContext(config={keys.ASYNC_COPY: "tma"}),
        pytest.raises(LoweringError, match=r"main, PassContext: found .* with target cuda sm_86"),
    ):
        tvm.compile(mod, target={**_programs.SM80, "arch": "sm_86"})


ASYNC, TEAMS, REGS = keys.ASYNC_COPY, keys.CONSUMERS, keys.REGISTERS


@pytest.mark.parametrize(
    ("name", "value", "place", "message"),
    [
        (
            "tvm_hopper.asinc_copy",
            "tma",
            "block",
            "unknown key .*did you mean tvm_hopper.async",
        ),
        (
            "tvm_hopper.zzz",
            1,
            "block",
            "found unknown key tvm_hopper.zzz; need a key of tvm_",
        ),
        (
            ASYNC,
            "tma",
            "loop",
            "loop i_0: found tvm_hopper.async_copy on a loop; need it on a b",
        ),
        (TEAMS, 2, "block", "block B: found tvm_hopper.consumers on a block; need it on a loop"),
        (TEAMS, 8, "loop", "tvm_hopper.consumers = 8; need a value of type int from 1 to 7"),
        (TEAMS, 2.0, "loop", "tvm_hopper.consumers = 2.0; need a value of type int from 1"),
        (REGS, [40], "loop", r"tvm_hopper.registers = \[40\]; need a list of 2 values of type int"),
        (REGS, 40, "loop", "tvm_hopper.registers = 40; need a list of 2 values"),
        (ASYNC, "tmma", "block", "tvm_hopper.async_copy = 'tmma'; need one of 'tma'"),
    ],
)
def test_what_cannot_be_read_is_refused(name, value, place, message) -> None:
    with pytest.raises(LoweringError, match=message):
        tvm.compile(annotated(name, value, place).mod, target=H200)


@pytest.mark.parametrize(
    ("name", "value", "place", "partner"),
    [
        (keys.SWIZZLE, 128, "block", keys.ASYNC_COPY),
        (keys.ACCUMULATE, "float32", "block", keys.WGMMA),
        (keys.CONSUMERS, 2, "loop", "software_pipeline_stage"),
        (keys.REGISTERS, [40, 232], "loop", "software_pipeline_stage"),
        (keys.WGMMA_PENDING, 1, "loop", "software_pipeline_stage"),
    ],
)
def test_a_key_that_would_change_nothing_is_refused(name, value, place, partner) -> None:
    with pytest.raises(LoweringError, match=f"found {name} without {partner}; need both on the sa"):
        tvm.compile(annotated(name, value, place).mod, target=H200)


def test_unknown_attribute_is_refused() -> None:
    func = _programs.add_one().mod["main"].with_attr("tvm_hopper.strikt", True)
    with pytest.raises(LoweringError, match=r"attribute: found unknown key .*strikt.*strict\?"):
        tvm.compile(tvm.IRModule({"main": func}), target=H200)


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ({"kind": "cuda", "arch": "sm_86"}, "cuda sm_86;"),
        ({"kind": "cuda", "arch": "sm_90"}, "cuda sm_90;"),
        ("llvm", "llvm;"),
    ],
)
def test_another_target_is_refused(target, found: str) -> None:
    with pytest.raises(LoweringError, match=f"with target {found} need a cuda target with arch"):
        tvm.compile(annotated().mod, target=target)


def test_two_functions_with_different_compilers_are_refused(lowered) -> None:
    mod = tvm.IRModule(
        {
            name: annotated().mod["main"].with_attr({"global_symbol": name, keys.COMPILER: name})
            for name in ("nvcc", "nvrtc")
        }
    )
    with pytest.raises(tvm_hopper.HopperError, match=r"compiler = 'nv\w+' next to 'nv"):
        tvm.compile(mod, target=H200)


def test_requests_are_listed_with_their_place() -> None:
    sch = annotated()
    sch.annotate(sch.get_loops(sch.get_sblock("B"))[1], keys.REGISTERS, [40, 232])
    found = marks.find_requests(sch.mod["main"].with_attr(keys.STRICT, True))
    assert [(r.place, r.owner, r.name, options.plain(r.value)) for r in found] == [
        ("function", "attribute", keys.STRICT, True),
        ("block", "B", keys.ASYNC_COPY, "tma"),
        ("loop", "i_1", keys.REGISTERS, [40, 232]),
    ]


def test_an_annotated_function_without_a_target_is_refused() -> None:
    with pytest.raises(LoweringError, match="with no target"):
        marks.mark_requests(annotated().mod)


def test_a_gate_in_front_of_another_gate_wraps_it(lowered, monkeypatch) -> None:
    """Whatever factory stands in the map is wrapped, and still serves what is not ours."""
    from tvm.tirx import compilation_pipeline

    from tvm_hopper.integration import gate

    served = []
    stock = compilation_pipeline.PIPELINE_MAP["s_tir"]

    def other(**options):
        served.append(options)
        return stock.gate_of(**options)

    monkeypatch.setitem(compilation_pipeline.PIPELINE_MAP, "s_tir", other)
    gate.install()
    gate.install()
    assert compilation_pipeline.PIPELINE_MAP["s_tir"].gate_of is other
    tvm.compile(_programs.add_one().mod, target=H200)
    assert served == [{}]


def test_tags_follow_tvm_and_never_replace(monkeypatch) -> None:
    h100, h200 = Target("nvidia/nvidia-h100"), Target("nvidia/nvidia-h200")
    assert {**h200.attrs} == {**h100.attrs, "feature.num_sms": 132}
    from tvm_hopper.requests import tags

    registered = []
    monkeypatch.setattr("tvm.target.register_tag", lambda name, _: registered.append(name))
    tags.register_tags()
    assert registered == []
