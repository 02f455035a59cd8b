"""The program that compares register instructions with a GPU, without one."""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.calibration import apart
from benchmarks.calibration.instructions import (
    __main__ as calibration,
    forms,
    judge,
    measure,
    operands,
    report,
)
from tvm_hopper.sim.arithmetic.table import INSTRUCTIONS

FEW = ["dp4a", "fma_half", "lg2", "setp_pq", "mov_unpack_b16x2", "lop3_bool", "cvt_f8x2_f32"]


def form_of(name, opcode):
    return next(form for form in forms.forms_of(name) if form.opcode == opcode)


def test_every_modelled_instruction_is_tried():
    assert set(forms.families()) == set(INSTRUCTIONS)
    shares = measure.shares(FEW, 3)
    assert sorted(name for share in shares for name in share) == sorted(FEW)
    assert len(shares) == 3


@pytest.mark.parametrize("name", FEW)
def test_what_the_simulator_computes_is_right(name):
    rows = measure.measure([name], lambda some: judge.simulated)
    assert [row["form"] for row in rows] == [form.opcode for form in forms.forms_of(name)]
    assert all(report.is_right(row) for row in rows)


@pytest.mark.parametrize("name", FEW)
def test_one_wrong_bit_is_seen(name):
    def wrong(form, columns):
        found = judge.simulated(form, columns)
        size = 8 * found[-1].dtype.itemsize
        found[-1] = found[-1] ^ found[-1].dtype.type(1 << min(size - 2, 13))
        return found

    rows = measure.measure([name], lambda some: wrong)
    assert not any(report.is_right(row) for row in rows)
    assert all(row["first"] for row in rows)


def changed(form, columns, change):
    """Judge results of which one is changed, as numbers of f32."""
    got = judge.simulated(form, columns)
    numbers = got[0].view(np.float32)
    place = int(np.nonzero(np.isfinite(numbers) & (np.abs(numbers) > 1e-30))[0][0])
    numbers[place] = change(numbers[place])
    return judge.judge(form, columns, got)


def test_an_approximation_may_differ_within_its_bound():
    form = form_of("ex2", "ex2.approx.f32")
    columns = operands.draw(form)
    row = changed(form, columns, lambda x: np.nextafter(x, np.float32(np.inf)))
    assert report.is_right(row)
    assert 0.2 < row["worst"] < 0.8
    row = changed(form, columns, lambda x: x * np.float32(1 + 1e-6))
    assert not report.is_right(row)
    assert row["worst"] > 1


def test_a_result_that_ptx_lists_has_no_room():
    form = form_of("rcp", "rcp.approx.f32")
    columns = operands.draw(form)
    got = judge.simulated(form, columns)
    values = columns[0].view(np.float32)
    place = int(np.nonzero(np.isinf(values))[0][0])
    got[0].view(np.float32)[place] = 1e-44
    assert not report.is_right(judge.judge(form, columns, got))


def test_another_nan_is_counted_and_is_right():
    form = form_of("add", "add.rn.f32")
    columns = operands.draw(form)
    got = judge.simulated(form, columns)
    nans = got[0] == 0x7FFFFFFF
    got[0][nans] = 0x7FC00000
    row = judge.judge(form, columns, got)
    assert report.is_right(row)
    assert row["other NaN"] == nans.sum() > 0


def test_operands_hold_all_that_is_special():
    for form in (form_of("add", "add.rn.f32"), form_of("bfe", "bfe.s64")):
        columns = operands.draw(form)
        for column, typed in zip(columns, form.inputs, strict=True):
            assert len(column) == operands.COUNT
            assert set(operands.specials(*typed)[:8].tolist()) <= set(column.tolist())
    columns = operands.draw(form_of("div", "div.s32"))
    assert (columns[1] != 0).all()


def test_kernels_compile():
    device = pytest.importorskip("benchmarks.calibration.instructions.device")
    some = [forms.forms_of(name)[0] for name in FEW]
    from benchmarks.calibration.layouts.device import compile_text

    assert compile_text(device.text_of(some))[:4] == b"\x7fELF"


@pytest.mark.slow
def test_all_kernels_compile():
    device = pytest.importorskip("benchmarks.calibration.instructions.device")
    from benchmarks.calibration.layouts.device import compile_text

    all_ = [form for name in forms.families() for form in forms.forms_of(name)]
    for start in range(0, len(all_), measure.AT_ONCE):
        text = device.text_of(all_[start : start + measure.AT_ONCE])
        assert compile_text(text)[:4] == b"\x7fELF"


ROW = {"form": "add.u32", "name": "add_int", "tried": 2, "as simulated": 2, "other NaN": 0}


def test_the_table_names_what_is_not_as_simulated():
    first = [{"operands": ["0x1"], "simulated": ["0x2"], "chip": ["0x3"]}]
    wrong = ROW | {"form": "add.s32", "as simulated": 1, "first": first}
    rough = {"form": "ex2.approx.f32", "name": "ex2", "tried": 9, "as simulated": 9,
             "worst": 0.5, "without bound": 1}  # fmt: skip
    failed = {"form": "cvt, ...", "name": "cvt", "failed": "killed after 110 s"}
    lines = report.table([ROW, wrong, rough, failed], {"chip": "X"}).splitlines()
    assert "| add_int | 2 | 1 | 4 | 3 | 0 |" in lines
    assert "| ex2.approx.f32 | 9 | 9 | 0.500 | 1 |" in lines
    assert "- `add.s32`: 1 of 2" in lines
    assert "- `cvt, ...`: killed after 110 s" in lines


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("import time; time.sleep(60)", "killed after 1 s"),
        ("raise SystemExit('CUDA answers 700')", "exit code 1: CUDA answers 700"),
    ],
)
def test_however_a_process_ends_there_is_a_row(script, end, monkeypatch):
    run = subprocess.run
    change = lambda command, **kw: run([sys.executable, "-c", script], **kw)  # noqa: E731
    monkeypatch.setattr(apart.subprocess, "run", change)
    (row,) = calibration.measure_apart(["mov", "cvt"], limit=1.0)
    assert row == {"form": "mov, cvt", "name": "mov", "failed": end}


def test_a_run_writes_its_table_and_says_whether_all_is_right(monkeypatch, tmp_path):
    row = dict(ROW)
    monkeypatch.setattr(
        calibration, "measure_apart", lambda names: [{"machine": {"chip": "X"}}, row]
    )
    arguments = ["--only", "add_int", "--output", str(tmp_path)]
    assert calibration.main(arguments) == 0
    (path,) = tmp_path.glob("instructions_*.md")
    assert "- chip: X" in path.read_text()
    kept = json.loads(path.with_suffix(".json").read_text())
    assert kept["rows"] == [ROW]
    assert kept["machine"]["command"].endswith("calibration.instructions --only add_int")
    row["as simulated"] = 1
    assert calibration.main(arguments) == 1


def test_an_unknown_instruction_is_refused(capsys):
    with pytest.raises(SystemExit):
        calibration.main(["--only", "add_int,nonsense"])
    assert "found nonsense" in capsys.readouterr().err
