"""What the report says, of modules and executables, as text, page and plain values."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests.relax import kinds, models
from tvm_hopper.cli import main
from tvm_hopper.errors import HopperError
from tvm_hopper.facts.devices import Chip
from tvm_hopper.relax import report
from tvm_hopper.relax.calls import PAGED_ATTENTION, find_calls
from tvm_hopper.relax.collect import of_library
from tvm_hopper.relax.keep_records import FUNCTION, MARK, KeepRecords
from tvm_hopper.relax.measure_calls import timer_of
from tvm_hopper.relax.model_report import ModelReport
from tvm_hopper.relax.model_table import COLOURS, COPIED, FLOAT32, PAGED, advice, class_rows, reason
from tvm_hopper.relax.model_times import Cost, assumed_sizes, call_cost, value_of
from tvm_hopper.relax.records import (
    GIVEN,
    LIBRARY,
    NOBODY,
    OURS,
    STOCK,
    CallRecord,
    FunctionRecord,
    KernelRecord,
    ProductRecord,
    TensorRecord,
    from_text,
    to_text,
)
from tvm_hopper.relax.report_sections import BOUND, ESTIMATED, ReportRow, Section
from tvm_hopper.relax.schedule_functions import ATTR
from tvm_hopper.testing.llama import SMALL, LlamaShape, llama
from tvm_hopper.testing.relax_forms import model_of
from tvm_hopper.transforms.common.explain_notes import ElementsNote

REFUSED = (("Matmul", "no product"), ("RowReduction", "rows"))
SIZES = {"batch": 2, "length": 8}


def product(name="linear", **changes) -> FunctionRecord:
    """Return the record of a product of 4096 x 4096 with two classes."""
    shapes = (("rows", "4096"), ("4096", "4096"), ("rows", "4096"))
    tensors = tuple(
        TensorRecord(x, shape, "float16") for x, shape in zip("xwy", shapes, strict=True)
    )
    kernels = (
        KernelRecord("rows <= 16", 16, "64x16x128, transposed", 11.0),
        KernelRecord("rows >= 17", 4096, "128x256x64", 200.0),
    )
    called = (("b * s", "4096"), ("4096", "4096"), ("b * s", "4096"))
    given = {
        "tensors": tensors,
        "kernels": kernels,
        "product": ProductRecord("rows", 4096, 4096, "float16", "float16", ("k", "k")),
        "calls": (CallRecord("prefill", called, 3),),
        "rule": "Matmul",
        "kind": "product",
        "flops": "rows * 33554432",
        "num_bytes": "rows * 16384 + 33554432",
        **changes,
    }
    return FunctionRecord(name, given.pop("computed_by", OURS), **given)


def test_of_a_module_that_was_scheduled():
    said = report(models.scheduled_llama("float16", "none"), sizes=SIZES)
    assert {x.computed_by for x in said.functions} == {OURS}
    assert said.others == ()
    assert set(said.callers) == {"prefill", "decode"}
    linear = said["NT_matmul4_rows"]
    assert linear.product == ProductRecord("rows", 256, 128, "float16", "float32", ("k", "k"))
    assert [x.launched_for for x in linear.kernels] == ["rows <= 16", "rows >= 17"]
    assert [x.rows for x in linear.kernels] == list(models.CLASSES)
    assert {(x.caller, x.count) for x in linear.calls} == {("prefill", 1), ("decode", 1)}
    (row,) = (x for x in said.section("prefill").rows if x.function is linear)
    assert row.rows == "batch * length = 16"
    assert row.kernel is linear.kernels[0]
    assert said.section("prefill").served == {"flops": 1, "num_bytes": 1, "microseconds": 1}
    assert list(said) == list(said.functions)
    assert len(said) == len(said.functions)
    with pytest.raises(HopperError, match="found no function linear; need one of"):
        said["linear"]
    with pytest.raises(HopperError, match=r"found no calls in 'forward'; need one of .*prefill"):
        said.section("forward")


def test_of_a_plain_module():
    mod = llama(SMALL, attention="none")
    said = report(mod, models.H200, classes=models.CLASSES)
    want = report(models.scheduled_llama("float16", "none"))
    assert said.functions == want.functions


def test_of_an_executable_of_what_is_loaded_and_of_a_file(tmp_path, capsys):
    mod = models.scheduled_llama("float16", "none")
    rest = relax.backend.cuda.pipeline
    with Target(models.H200) as target:
        passes = [*rest.dataflow_lower_passes(target), *rest.finalize_passes(target)]
        lowered = tvm.transform.Sequential(passes)(mod)
    builder = relax.ExecBuilder()
    relax.vm_build._vmcodegen(builder, lowered)
    ex = relax.vm_build._vmlink(builder, None)  # without kernels: a machine without CUDA loads it
    assert report(ex).functions == report(mod).functions
    path = tmp_path / "model.so"
    ex.export_library(str(path))
    assert report(tvm.runtime.load_module(str(path))).functions == report(mod).functions
    assert report(path).functions == report(mod).functions  # of the file: nothing is loaded
    command = ["model-report", str(path), "--sizes", "batch=2,length=8"]
    page = tmp_path / "model.html"
    assert main([*command, "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("tvm_hopper serves 100% of the FLOPs, 100% of the bytes and 100% of the")
    assert "<html" in page.read_text(encoding="utf-8")
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sizes"] == SIZES
    assert main([*command, "--html", str(tmp_path / "no" / "model.html")]) == 2
    assert "found no place to write at" in capsys.readouterr().err


def test_the_records_are_added_once():
    mod = models.scheduled_llama("float16", "none")
    assert any(gv.name_hint == FUNCTION for gv in mod.functions)
    tvm.ir.assert_structural_equal(KeepRecords()(mod), mod)
    plain = llama(SMALL, attention="none")
    tvm.ir.assert_structural_equal(KeepRecords()(plain), plain)


def test_a_model_may_have_a_function_of_that_name():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function(FUNCTION, [x]):
        builder.emit_func_output(x)
    mod = KeepRecords()(builder.get().with_attr(ATTR, "the records"))
    (name,) = [x.name_hint for x in mod.functions if x.name_hint != FUNCTION]
    assert MARK in str(mod[name])
    assert len(mod[FUNCTION].params) == 1
    tvm.ir.assert_structural_equal(KeepRecords()(mod), mod)


def said_of(*records, sizes=(("b", 2), ("s", 4)), assumed=()) -> ModelReport:
    return ModelReport(records, dict(sizes), Chip(), assumed)


def test_times():
    (few,) = said_of(product()).section("prefill").times.values()
    (many,) = said_of(product(), sizes={"b": 2, "s": 1024}).section("prefill").times.values()
    assert 3 * 9 < few < 3 * 16
    assert 3 * 90 < many < 3 * 140
    assert said_of(product(), sizes={"b": 0, "s": 4}).section("prefill").times == {"linear": 0.0}


def test_a_kernel_has_one_estimate():
    """That of its choice, wherever it is shown; products of one row, of dot products, too."""
    (row,) = said_of(product(), sizes={"b": 1, "s": 16}).section("prefill").rows
    assert row.cost.microseconds == 3 * 11.0
    assert row.time_is == "estimated"
    said = report(models.schedule(models.linear(1, 256, 128)))
    (row,) = said.section("forward").rows
    assert row.cost.microseconds == row.kernel.microseconds
    assert "us" not in row.kernel.configuration
    assert str(said).count(f"{row.cost.microseconds:.1f}") == 2  # the row and its table's title


def test_attention_takes_the_time_of_its_choice():
    """Of sizes that are not known, its FLOPs at the rate of tensor cores."""
    tensor, call = TensorRecord("q", ("1024", "64"), "float16"), CallRecord("run", (), 1)
    known = {"kernels": (KernelRecord("", None, "128x128", 27.4),), "rule": "Attention"}
    one = product(product=None, tensors=(tensor,), calls=(call,), flops="67000000000", **known)
    assert call_cost(one, call, {"rows": 1}, Chip()).microseconds == 27.4
    many = replace(one, tensors=(replace(tensor, shape=("rows", "64")),))
    assert call_cost(many, call, {"rows": 1}, Chip()).microseconds == pytest.approx(100)


@pytest.mark.parametrize(
    ("record", "sizes"),
    [(product(), {"b": 2}), (product(tensors=()), {"b": 2, "s": 4})],
    ids=["a symbol without a value", "shapes that are not told"],
)
def test_what_has_no_time(record, sizes):
    cost = call_cost(record, record.calls[0], sizes, Chip())
    assert (cost.flops, cost.num_bytes, cost.microseconds) == (None, None, None)
    said = said_of(record, sizes=sizes)
    assert said.section("prefill").times == {"linear": None}
    assert "linear" in str(said)


def test_bytes_are_the_time_of_what_is_no_product():
    moved = "rows * 16384 + 33554432"
    one = product(product=None, kernels=(), flops="rows * 4096", num_bytes=moved)
    sizes = {"b": 64, "s": 1024}
    time = call_cost(one, one.calls[0], sizes, Chip()).microseconds
    assert time == pytest.approx((2 * 65536 * 4096 + 4096 * 4096) * 2 / 4.28e6)
    dear = replace(one, elements=(ElementsNote("w", 2, 32),))  # a sector for each element
    more = call_cost(dear, dear.calls[0], sizes, Chip()).microseconds
    assert more == pytest.approx(time + 15 * 4096 * 4096 * 2 / 4.28e6)
    told = " ".join(str(said_of(dear, sizes=sizes)).split())
    assert "ours: w is accessed 2 bytes at a time, and memory moves 32 for each" in told
    told = " ".join(str(said_of(one, sizes=sizes)).split())
    assert "ours: moves 3.32 GB, as fast as memory does; it gets faster if it moves fewer" in told


def test_a_bound_for_kernels_of_others():
    """TVM's rules use no tensor cores: 137 GFLOP take 2 ms and more."""
    other = product(computed_by=STOCK, kernels=())
    (row,) = said_of(other, sizes={"b": 1, "s": 4096}).section("prefill").rows
    assert row.time_is == "at least"
    assert row.cost.microseconds == pytest.approx(3 * 2 * 4096**3 / 67e6)
    text = str(said_of(product("served"), other, sizes={"b": 1, "s": 4096}))
    assert f"≥ {row.cost.microseconds:.1f}" in text
    assert "50% of the FLOPs, 50% of the bytes and at most 9% of the estimated time" in text
    assert text.index("linear x 3") < text.index("served x 3")  # sorted by time


def test_sizes_that_nobody_gave():
    assert assumed_sizes([product()]) == {"b": 1, "s": 1024}
    batch = replace(product(), calls=(CallRecord("main", (("n", "4096"), ("4096", "n")), 1),))
    assert assumed_sizes([batch]) == {"n": 1024}  # a length, too
    said = report(models.scheduled_llama("float16", "none"))
    assert said.sizes == {"batch": 1, "length": 1024}
    assert "batch = 1, length = 1024 (batch, length assumed)" in " ".join(str(said).split())
    half = report(models.scheduled_llama("float16", "none"), sizes={"batch": 4})
    assert half.assumed == ("length",)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("b * s + 3", 13),
        ("(b + 63) // 64 * 64", 64),
        ("s % 2 - 1", 0),
        ("max(b, s)", 5),
        ("t", None),
        ("b // 0", None),
        ("T.max(b, s)", None),
        ("round(b)", None),
        ("b * ", None),
        ("'b'", None),
        ("b ** 99", None),
    ],
)
def test_extents(text, value):
    assert value_of(text, {"b": 2, "s": 5}) == value


def test_json_keeps_all_of_it():
    records = (product(), product("other", product=None, refused=(("Matmul", "found x; need y"),)))
    assert from_text(to_text(records)) == records
    said = said_of(*records).as_dict()
    assert json.loads(json.dumps(said)) == said
    assert [x["name"] for x in said["functions"]] == ["linear", "other"]
    assert {x["function"] for x in said["callers"]["prefill"]["rows"]} == {"linear", "other"}
    with pytest.raises(HopperError, match="found records that another version wrote"):
        from_text('[{"name": "linear", "by": "tvm_hopper"}]')


def test_names_are_escaped():
    name = "linear[m=16]<b>&"
    record = product(name, computed_by=NOBODY, refused=(("Matmul", "found [bold]a < b[/bold]"),))
    said = said_of(record)
    assert name in str(said)
    assert "[bold]a < b[/bold]" in str(said)
    page = said._repr_html_()
    assert "linear[m=16]&lt;b&gt;&amp;" in page
    assert "<b>&" not in page
    assert "a < b" not in page


def test_the_tables():
    said = said_of(product(), product("other", computed_by=NOBODY), assumed=("s",))
    text = str(said)
    first = text.splitlines()[0]
    assert first.startswith("tvm_hopper serves 50% of the FLOPs, 50% of the bytes and at most ")
    assert "b = 2, s = 4 (s assumed); 1 by nobody: they will not build" in " ".join(text.split())
    assert "linear x 3" in text
    assert "rows: b * s = 8" in text
    assert "kernels by number of rows" in text
    assert class_rows(product()) == [
        ("1 to 16", "64x16x128, transposed"),
        ("17 and more", "128x256x64"),
    ]


def test_neighbouring_classes_of_one_configuration_are_one():
    conditions = [
        "rows <= 1",
        "2 <= rows <= 8",
        "9 <= rows <= 16 or 33 <= rows <= 64",
        "rows >= 65",
    ]
    texts = ["dots", "64x8x128", "64x8x128", "64x64x64"]
    kernels = tuple(
        KernelRecord(x, 1, text, 2.0) for x, text in zip(conditions, texts, strict=True)
    )
    assert class_rows(product(kernels=kernels)) == [
        ("1", "dots"),
        ("2 to 16, 33 to 64", "64x8x128"),
        ("65 and more", "64x64x64"),
    ]
    assert class_rows(product(kernels=(KernelRecord("", None, "", None),))) == [
        ("any", "as it was given")
    ]


def test_the_page_shows_who_takes_the_time():
    other = product("other", computed_by=STOCK, kernels=())
    page = said_of(product(), other)._repr_html_()
    assert COLOURS[OURS] in page
    assert page.count(f"background:{COLOURS[STOCK]}") == 2  # of the whole, and of its row


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (product(computed_by=STOCK, kind="row reduction", refused=REFUSED), "RowReduction: rows"),
        (product(computed_by=STOCK, kind="pointwise", refused=REFUSED), "Matmul: no product"),
        (product(computed_by=GIVEN, rule="scheduled already"), "scheduled already"),
        (product(computed_by=LIBRARY), "an external function, dispatched before our pipeline"),
        (product(computed_by=STOCK, kind="reshape", refused=REFUSED), COPIED),
        (product(computed_by=STOCK, kind="attention"), PAGED),
    ],
    ids=lambda x: getattr(x, "kind", "") or getattr(x, "computed_by", ""),
)
def test_one_reason(record, why):
    assert reason(record) == why
    assert " ".join(str(said_of(record)).split())


# -- what costs ----------------------------------------------------------------


def test_convolutions_cost_more_than_a_small_product():
    said = report(kinds.export("convolutions", "float32"), models.H200, sizes={"batch": 8})
    shares = said.section("forward").served
    assert shares["flops"] < 0.1
    assert shares["microseconds"] > shares["flops"]
    text = " ".join(str(said).split())
    assert re.search(r"% of the time: (fused_conv2d\w*( x \d+)?, )+not ours \(at least", text)
    assert re.search(r"forward: at least \d+\.\d us, estimated", text)
    assert all("Matmul: " in reason(x) for x in said.others)


def test_weights_that_are_cast_at_each_call():
    def build(x, w):
        half = relax.op.permute_dims(relax.op.astype(w, "float16"))
        return relax.op.nn.relu(relax.op.matmul(x, half))

    mod = model_of(build, ((64, 128), "float16"), ((256, 128), "float32"), num_input=1)
    said = report(mod, models.H200)
    (cast,) = (x for x in said.section("main").rows if x.weight_bytes)
    assert cast.weight_bytes == 256 * 128 * (4 + 2)
    text = " ".join(str(said).split())
    assert "weights cast, transposed or repeated at each call: 197 kB" in text
    assert "of weights alone, at each call: 197 kB" in text
    unknown = mod.clone()
    unknown["main"] = mod["main"].without_attr("num_input")
    assert not any(x.weight_bytes for x in report(unknown, models.H200).section("main").rows)


def test_attention_of_the_paged_cache():
    mod = llama(SMALL, attention="paged")
    calls, libraries = find_calls(mod)
    assert libraries == [PAGED_ATTENTION]
    record = replace(of_library(PAGED_ATTENTION), calls=tuple(calls[PAGED_ATTENTION]))
    assert assumed_sizes([record]) == {"batch": 1, "length": 1024, "context": 1024}
    said = said_of(record, sizes={"batch": 2, "length": 8, "context": 100})
    (row,) = said.section("prefill").rows
    assert row.cost.flops == 2 * 2 * 8 * 100 * 4 * 32
    assert row.cost.num_bytes == 2 * (2 * 8 * (8 + 4) * 32 + 2 * 100 * 4 * 32)
    assert reason(record) == PAGED
    (row,) = said.section("decode").rows
    assert row.cost.flops == 2 * 2 * 100 * 4 * 32


def test_external_functions():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 64), "float16"))
    half = relax.prim_value(tvm.tirx.FloatImm("float64", 0.5))
    kind = relax.TensorType((64, 64), "float16")
    with builder.function("main", [x]):
        y = builder.emit(relax.Call(relax.ExternFunc("my.scale"), [x, half], ty_args=[kind]))
        z = builder.emit(relax.op.call_dps_packed("my.other", (y,), kind))
        builder.emit_func_output(z)
    calls, libraries = find_calls(builder.finalize())
    assert libraries == ["my.scale", "my.other"]
    for name in libraries:
        said = said_of(replace(of_library(name), calls=tuple(calls[name])), sizes={})
        (row,) = said.section("main").rows
        assert (row.cost.flops, row.cost.num_bytes) == (None, 2 * 64 * 64 * 2)
        assert f"FLOPs unknown, not counted: {name}" in " ".join(str(said).split())


# -- times of a device ------------------------------------------------------------


def test_measured_on_the_host():
    """The machine of a processor: kernels are the plain loops of the same names."""
    mod = models.legalized(llama(SMALL, "float32", "none"))
    calls, _ = find_calls(mod)
    functions = (FunctionRecord(name, OURS, calls=tuple(x)) for name, x in calls.items())
    said = ModelReport(tuple(functions), SIZES)
    machine = relax.VirtualMachine(relax.build(mod, "llvm"), tvm.cpu())
    given = models.on_device(models.inputs_of(mod, "prefill", SIZES))
    want = machine["prefill"](*given).numpy()
    found = said.measure(machine, given, "prefill", repeats=2)
    assert {x.time_is for x in found.section("prefill").rows} == {"measured"}
    assert all(time > 0 for time in found.section("prefill").times.values())
    assert "of the measured time" in str(found)
    assert (machine["prefill"](*given).numpy() == want).all()  # no instrument is left
    with pytest.raises(HopperError, match=r"found several functions, .*; need one: measure"):
        report(models.scheduled_llama("float16", "none")).measure(machine, given)


def test_devices_without_a_timer():
    with pytest.raises(HopperError, match="on a device of type 4; need a CUDA GPU"):
        timer_of(4)


# -- the shape that counts ---------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_layers_of_the_large_model(dtype):
    """Prefill and decode of 32 layers share five products and a norm, all ours."""
    mod = llama(LlamaShape(), dtype, "plain")
    said = report(mod, models.H200, sizes={"batch": 1, "length": 2048, "past": 1})
    products = [x for x in said.functions if x.product]
    assert len(products) == 5
    assert sum(call.count for x in products for call in x.calls) == 2 * (4 * 32 + 1)
    assert all(x.computed_by == OURS for x in said.functions if "norm" in x.name)


def test_the_head_names_causes():
    """Functions that one thing holds are one line; weights that are cast come first."""
    f32 = (("Matmul", f"block C, tensor A: {FLOAT32}"),)

    def row(name, time, by=STOCK, weights=0.0, **given):
        record = FunctionRecord(name, by, "r", **given)
        kind = ESTIMATED if by == OURS else BOUND
        return ReportRow(record, 2, Cost(1e9, 1e6, time), kind, None, "", weights)

    rows = [
        row("wide1", 40.0, refused=f32),
        row("wide2", 20.0, refused=f32),
        row("cast", 20.0, OURS, 2e6),
        row("fast", 15.0, OURS),
    ]
    section = Section("main", tuple(rows))
    weights, wide, fast = advice(section)
    assert weights.startswith("weights cast, transposed or repeated at each call: 2 MB, 21% of")
    assert wide == (
        "63% of the time: wide1 x 2, wide2 x 2, not ours (at least 60.0 us): multiplies float32, "
        "which tensor cores do not; tvm_hopper.relax.to_half(mod) lets products have 16 bits"
    )
    assert fast.startswith("16% of the time: fast x 2, ours: nothing is known to slow it; ")
