"""What the report says, of modules and executables, as text, page and plain values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tests.relax import models
from tvm_hopper.errors import HopperError
from tvm_hopper.facts.devices import Chip
from tvm_hopper.relax import report
from tvm_hopper.relax.keep_records import FUNCTION, MARK, KeepRecords, records_of
from tvm_hopper.relax.model_report import ModelReport
from tvm_hopper.relax.model_table import rows_of
from tvm_hopper.relax.model_times import call_time, value_of
from tvm_hopper.relax.records import (
    NOBODY,
    OURS,
    CallRecord,
    FunctionRecord,
    KernelRecord,
    ProductRecord,
    TensorRecord,
    from_text,
    to_text,
)
from tvm_hopper.relax.schedule_functions import ATTR
from tvm_hopper.testing.llama import SMALL, LlamaShape, llama
from tvm_hopper.transforms.common.explain_notes import ElementsNote

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
        **changes,
    }
    return FunctionRecord(name, given.pop("computed_by", OURS), **given)


def test_of_a_module_that_was_scheduled():
    said = report(models.scheduled_llama("float16", "none"), sizes=SIZES)
    assert {x.computed_by for x in said.functions} == {OURS}
    assert said.others == ()
    assert set(said.callers) == {"prefill", "decode"}
    linear = said["NT_matmul_rows"]
    assert linear.product == ProductRecord("batch", 256, 128, "float16", "float16", ("k", "k"))
    assert [x.launched_for for x in linear.kernels] == ["batch <= 16", "batch >= 17"]
    assert [x.rows for x in linear.kernels] == list(models.CLASSES)
    assert {(x.caller, x.count) for x in linear.calls} == {("prefill", 1), ("decode", 1)}
    assert all(time is not None for time in said.times("prefill").values())
    assert list(said) == list(said.functions)
    assert len(said) == len(said.functions)
    with pytest.raises(HopperError, match="found no function linear; need one of"):
        said["linear"]
    with pytest.raises(HopperError, match=r"found no calls in 'forward'; need one of .*prefill"):
        said.times("forward")


def test_of_a_plain_module():
    mod = llama(SMALL, attention="none")
    said = report(mod, models.H200, classes=models.CLASSES)
    want = report(models.scheduled_llama("float16", "none"))
    assert said.functions == want.functions


def test_of_an_executable_and_of_what_is_loaded(tmp_path):
    mod = models.scheduled_llama("float16", "none")
    rest = relax.backend.cuda.pipeline
    with Target(models.H200) as target:
        passes = [*rest.dataflow_lower_passes(target), *rest.finalize_passes(target)]
        lowered = tvm.transform.Sequential(passes)(mod)
    builder = relax.ExecBuilder()
    relax.vm_build._vmcodegen(builder, lowered)
    ex = relax.vm_build._vmlink(builder, None)  # without kernels: a machine without CUDA loads it
    assert report(ex).functions == report(mod).functions
    path = str(tmp_path / "model.so")
    ex.export_library(path)
    loaded = tvm.runtime.load_module(path)
    assert report(loaded).functions == report(mod).functions


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


def test_times():
    said = ModelReport((product(),), {"b": 2, "s": 4}, Chip())
    (few,) = said.times("prefill").values()
    more = ModelReport((product(),), {"b": 2, "s": 1024}, Chip())
    (many,) = more.times("prefill").values()
    assert 3 * 9 < few < 3 * 16
    assert 3 * 90 < many < 3 * 140
    assert ModelReport((product(),), {"b": 0, "s": 4}, Chip()).times("prefill") == {"linear": 0.0}


@pytest.mark.parametrize(
    ("record", "sizes"),
    [
        (product(), {"b": 2}),
        (product(computed_by=NOBODY), {"b": 2, "s": 4}),
        (product(tensors=()), {"b": 2, "s": 4}),
    ],
    ids=["a symbol without a value", "not ours", "shapes that are not told"],
)
def test_what_has_no_time(record, sizes):
    assert call_time(record, record.calls[0], sizes, Chip()) is None
    assert ModelReport((record,), sizes, Chip()).times("prefill") == {"linear": None}


def test_bytes_are_the_time_of_what_is_no_product():
    one = product(product=None)
    time = call_time(one, one.calls[0], {"b": 64, "s": 1024}, Chip())
    assert time == pytest.approx((2 * 65536 * 4096 + 4096 * 4096) * 2 / 4.28e6)
    dear = replace(one, elements=(ElementsNote("w", 2, 32),))  # a sector for each element
    more = call_time(dear, dear.calls[0], {"b": 64, "s": 1024}, Chip())
    assert more == pytest.approx(time + 15 * 4096 * 4096 * 2 / 4.28e6)
    assert "w: 2 bytes at a time" in rows_of(dear)[3]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("b * s + 3", 13),
        ("(b + 63) // 64 * 64", 64),
        ("s % 2 - 1", 0),
        ("t", None),
        ("b // 0", None),
        ("T.max(b, s)", None),
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
    said = ModelReport(records, {"b": 2, "s": 4}, Chip()).as_dict()
    assert json.loads(json.dumps(said)) == said
    assert [x["name"] for x in said["functions"]] == ["linear", "other"]
    assert set(said["microseconds"]["prefill"]) == {"linear", "other"}


def test_names_are_escaped():
    name = "linear[m=16]<b>&"
    record = product(name, computed_by=NOBODY, refused=(("Matmul", "found [bold]a < b[/bold]"),))
    said = ModelReport((record,), {}, Chip())
    assert name in str(said)
    assert "[bold]a < b[/bold]" in str(said)
    page = said._repr_html_()
    assert "linear[m=16]&lt;b&gt;&amp;" in page
    assert "<b>" not in page


def test_the_tables():
    said = ModelReport((product(), product("other", computed_by=NOBODY)), {"b": 2, "s": 4}, Chip())
    text = str(said)
    assert "1 of 2 functions by tvm_hopper, 1 by nobody: they will not build" in text
    assert "rows <= 16" in text
    assert "estimated for b = 2, s = 4" in text
    row = rows_of(product())
    assert row[1] == "tvm_hopper, Matmul"
    assert row[3].splitlines()[0] == "rows <= 16: 64x16x128, transposed, 11.0 us at 16 rows"
    assert row[4] == "3 of prefill"
    assert text.isascii() or "┃" in text


# -- what there is no report of ---------------------------------------------


def test_of_what_was_built_otherwise():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    ex = relax.build(builder.finalize(), "llvm")
    func = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attr("global_symbol", "main")
    for thing in (ex, ex.mod, tvm.compile(func, "llvm").mod):
        with pytest.raises(HopperError, match="found no records of tvm_hopper; need one that it"):
            report(thing)


@pytest.mark.parametrize("thing", [None, "model", 3])
def test_of_what_is_no_model(thing):
    with pytest.raises(HopperError, match=r"found \w+; need an IRModule, or what relax.build"):
        records_of(thing)


@pytest.mark.parametrize(
    ("target", "found"), [(None, "no target"), ("llvm", "target llvm")], ids=["none", "llvm"]
)
def test_of_a_plain_module_without_a_target_of_ours(target, found):
    with pytest.raises(HopperError, match=f"found {found}; need a cuda target with arch sm_90a"):
        report(llama(SMALL, attention="none"), target)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batches": 2}, "found a size of 'batches'; need symbols of the model: batch, length"),
        ({"batch": -1}, "found size batch=-1; need a number, 0 or more"),
        ({"batch": True}, "found size batch=True; need a number"),
    ],
)
def test_sizes_that_are_none(sizes, message):
    with pytest.raises(HopperError, match=message):
        report(models.scheduled_llama("float16", "none"), sizes=sizes)


def test_options_of_what_is_lowered():
    with pytest.raises(HopperError, match="found classes for a model that is lowered"):
        report(models.scheduled_llama("float16", "none"), classes=(16,))


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
