"""Whole models: the list, rows that come and go on, arithmetic, the table; what builds here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.models import __main__ as command, cases, measure, rows
from benchmarks.models.cases import CASES, Case, chosen
from benchmarks.models.paged import PagedSubject
from benchmarks.models.rows import COMPILED, EAGER, OURS, STOCK, Row
from tvm_hopper.relax import report
from tvm_hopper.relax.model_report import ModelReport
from tvm_hopper.relax.records import OURS as BY_US, CallRecord, FunctionRecord, TensorRecord
from tvm_hopper.testing.llama import llama

TIMES = {OURS: 100.0, EAGER: 120.0, COMPILED: 80.0, STOCK: 900.0}


def a_row(name=CASES[0].name, **changes) -> Row:
    given = {
        "times": dict(TIMES),
        "errors": {OURS: 5e-4, EAGER: 6e-4},
        "served": {"flops": 0.97, "num_bytes": 0.5, "torch_time": None},
        "kernels": [("matmul6_kernel", 2, 60.0), ("softmax", 1, 20.0)],
        "others": [("matmul6", "Matmul: a batch")],
        "machine": {"chip": "NVIDIA H200", "commit": name},
    }
    return Row(name, **{**given, **changes})


def test_the_list_has_each_kind_of_model():
    names = [x.name for x in CASES]
    assert len(set(names)) == len(names)
    makes = {x.make for x in CASES}
    assert len(makes) >= 14
    assert {x.way for x in CASES} == {cases.EXPORT, cases.ONNX, cases.NN}
    assert {x.dtype for x in CASES} >= {cases.FLOAT16, cases.BFLOAT16, cases.MIXED}
    files = {x.dtype for x in CASES if x.way == cases.ONNX}
    assert files == {cases.FLOAT16, cases.MIXED}  # a file of float32 is converted
    for name in ("llama", "qwen", "gemma", "paged"):
        assert {f"{name}_prefill", f"{name}_decode_1"} <= set(names)
    assert [x.name for x in CASES if not x.is_timed] == ["lstm", "mamba"]
    # What tells most comes first: a run may end early.
    assert {"llama_prefill", "encoder", "bert_32", "vit_32", "paged_prefill"} <= set(names[:7])


def test_each_case_has_its_function():
    from benchmarks.models import torch_models

    for case in CASES:
        if case.way != cases.NN:
            assert callable(cases.find_maker(torch_models, case))


def test_choosing():
    assert [x.name for x in chosen(["bert_1", "vit_1"])] == ["bert_1", "vit_1"]
    assert chosen([]) == list(CASES)
    with pytest.raises(ValueError, match="--only gpt: found no such model; need a part of one of"):
        chosen(["gpt"])


# -- rows ------------------------------------------------------------------------------


def test_ratios():
    assert a_row().ratio(EAGER) == 1.2
    assert Row("x", {OURS: 1.0, EAGER: 2.9}).ratio(EAGER) == 1.0  # below 3 us all are 3
    assert Row("x", {OURS: 5.0}).ratio(EAGER) is None
    assert rows.geometric_mean([0.5, 2.0]) == pytest.approx((0.5 * 1.5) ** 0.5)


def test_rows_are_read_as_they_come(tmp_path):
    path = tmp_path / "results" / "rows.jsonl"
    rows.append(path, a_row(times={}))
    rows.append(path, a_row())
    rows.append(path, Row(CASES[0].name, failures={"process": "ended after 9 s"}))
    with path.open("a") as file:
        file.write(json.dumps({**asdict(Row("bert_1")), "unknown": 1}) + '\n{"name": "vit_1", "ti')
    found = rows.read([path, tmp_path / "none.jsonl"])
    assert set(found) == {CASES[0].name, "bert_1"}
    assert found[CASES[0].name].times == TIMES  # times are kept where a later run has none
    assert found["bert_1"].is_done
    assert not Row("x", failures={"build": "why"}).is_done


def test_shares_by_time_of_pytorch():
    work = [("products", 80.0, True), ("products", 20.0, False), ("rest", 10.0, False)]
    assert rows.weighted_share({"products": 3.0, "rest": 1.0}, work) == pytest.approx(0.6)
    # No function of the class: an importer made it another one.
    assert rows.weighted_share({"attention": 1.0}, work) == pytest.approx(80 / 110)
    assert rows.weighted_share({}, work) is None
    assert rows.weighted_share({"rest": 1.0}, []) is None


def test_the_table():
    named = {x.name: x for x in (a_row(), a_row("bert_1", times={OURS: 10.0, EAGER: 20.0}))}
    named["vit_1"] = Row("vit_1", failures={"build": "LoweringError: x | y"})
    text = rows.table(named)
    first = next(x for x in text.splitlines() if x.startswith("| llama_prefill"))
    assert "| 100 | 1.20 | 0.80 | 9.00 | 97%, 50%, - | 5.0e-04; 6.0e-04 |" in first
    assert "Of eager: geometric mean 1.34, least 1.20, 2 models." in text
    assert "- llama_prefill: matmul6_kernel 60%, softmax 20%; matmul6 (Matmul: a batch)" in text
    assert "- vit_1: build: LoweringError: x / y" in text
    assert "bert_1:" not in text  # not slower than torch.compile, as far as is known
    assert "Not run: encoder" in text
    assert "Measured with: chip NVIDIA H200, commit llama_prefill or bert_1." in text
    assert all(x.count("|") == len(rows.HEADS) + 1 for x in text.splitlines() if x[:1] == "|")
    assert rows.table({}).splitlines()[0].startswith("| model |")


# -- the command ------------------------------------------------------------------------


def test_the_command(tmp_path, capsys):
    assert command.main(["--list", "--only", "llama_decode"]) == 0
    assert "2 layers of Llama-3-8B, decode 64 after 1024" in capsys.readouterr().out
    path = tmp_path / "rows.jsonl"
    rows.append(path, a_row())
    assert command.main(["table", str(path)]) == 0
    assert "| llama_prefill |" in capsys.readouterr().out
    for wrong in (["--only", "gpt"], ["tables"]):
        with pytest.raises(SystemExit):
            command.main(wrong)
    assert "found tables; need nothing, table, or save and a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "limit", "wanted"),
    [
        ("raise SystemExit('found no torch')", 60.0, "exit code 1: found no torch"),
        ("import time; time.sleep(60)", 0.2, "ended after"),
        ("pass", 60.0, ""),
    ],
    ids=["fails", "hangs", "ends"],
)
def test_a_process_that_ends_badly_is_a_row(tmp_path, monkeypatch, body, limit, wanted):
    real, partial = subprocess.Popen, json.dumps(asdict(a_row(failures={})))

    def start(arguments, **given):
        path = arguments[arguments.index("--row") + 1]
        Path(path).write_text(partial)  # what was known before it ended
        return real([sys.executable, "-c", body], **given)

    monkeypatch.setattr(command.subprocess, "Popen", start)
    out = tmp_path / "rows.jsonl"
    begin = time.monotonic()
    arguments = ["--only", CASES[0].name, "--out", str(out), "--jobs", "1", "--budget", str(limit)]
    assert command.main(arguments) == 0
    assert time.monotonic() - begin < 30
    row = rows.read([out])[CASES[0].name]
    assert row.times == TIMES
    assert wanted in row.failures.get("process", "")
    assert row.is_done == (not wanted)
    if row.is_done:  # another run has nothing to do
        assert command.main(arguments) == 0
        assert len(out.read_text().splitlines()) == 1


# -- measuring -------------------------------------------------------------------------


def test_parts_that_fail_are_lines():
    row, saved = Row("x"), []
    parts = measure.Parts(row, lambda x: saved.append(dict(x.failures)))
    assert parts.do("import", lambda: 3) == 3
    assert parts.do("build", lambda: 1 / 0) is None
    assert parts.do("GPU", lambda: time.sleep(5), seconds=0.05) is None
    assert row.failures["build"] == "ZeroDivisionError: division by zero"
    assert row.failures["GPU"].startswith("TimeoutError: found nothing after")
    assert len(saved) == 3


def test_errors():
    want = Array(np.array([[3.0, 4.0], [0.0, 2.0]]))
    assert measure.relative_error(want, want) == 0
    got = Array(want.values + np.array([[0.0, 0.0], [0.0, 1.0]]))
    assert measure.relative_error(got, want) == pytest.approx(1 / 29**0.5)
    assert measure.relative_error(got, want, is_routed=True) == pytest.approx(0.25)
    with pytest.raises(ValueError, match=r"found shape \(1,\); need \(2, 2\)"):
        measure.relative_error(Array(np.ones(1)), want)
    with pytest.raises(ValueError, match="found values that are no numbers"):
        measure.relative_error(Array(want.values * np.nan), want)


class Array:
    """As much of a tensor of PyTorch as errors need."""

    def __init__(self, values):
        self.values, self.shape = values, np.shape(values)

    def isfinite(self):
        return np.isfinite(self.values)

    def norm(self, dim=None):
        return Array(np.linalg.norm(self.values, axis=dim))

    def median(self):
        return np.median(self.values)

    def __sub__(self, other):
        return Array(self.values - other.values)

    def __truediv__(self, other):
        return Array(self.values / other.values)

    def __float__(self):
        return float(self.values)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "products"),
        ("aten::bmm", "attention"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("aten::_flash_attention_forward", "attention"),
        ("aten::cudnn_convolution", "convolutions"),
        ("aten::native_layer_norm", "rest"),
        ("aten::mul", "rest"),
    ],
)
def test_classes_of_operators(name, kind):
    assert measure.class_of_operator(name) == kind


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "wanted"),
    [
        ("fused_matmul_add", "product", (2, 2, 2), "products"),
        ("matmul1", "product", (3, 3, 3), "attention"),
        ("fused_conv2d_relu", "product", (4, 4, 4), "convolutions"),
        ("layer_norm", "row reduction", (2, 1, 2), "rest"),
        ("vm.builtin.attention", "attention", (), "attention"),
    ],
)
def test_classes_of_functions(name, kind, ranks, wanted):
    tensors = tuple(TensorRecord("x", ("8",) * rank, "float16") for rank in ranks)
    call = CallRecord("main", tuple(x.shape for x in tensors), 1)
    record = FunctionRecord(
        name, BY_US, kind=kind, tensors=tensors, flops="64", num_bytes="32", calls=(call,)
    )
    (row,) = ModelReport((record,), {}).section("main").rows
    assert measure.class_of(row) == wanted
    assert measure.work_of(row) == (32 if wanted == "rest" else 64)


# -- models that build without PyTorch ---------------------------------------------------


def test_a_model_of_tvm_s_frontend():
    """Without a GPU: all of it is ours, also the attention of the paged cache."""
    given = {"attention": "paged", "batch": 2, "length": 1}
    subject = PagedSubject(Case("x", cases.NN, "float16", "", "llama", given), tiny=True)
    mod = llama(subject.shape, subject.dtype, subject.attention)
    section = report(mod, "nvidia/nvidia-h200", classes=()).section(subject.method)
    assert "attention" in {measure.class_of(x) for x in section.rows}
    assert section.served["flops"] == 1
