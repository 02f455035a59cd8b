"""What of the comparison of a warp's products needs no GPU: kernels compile, judges see faults."""

import json

import numpy as np
import pytest

from benchmarks.calibration.layouts import report
from benchmarks.calibration.warp_products import forms, judge, measure, movement, operands
from tests.sim import mma_kernels

DENSE, SPARSE = forms.forms(sparse=False), forms.forms(sparse=True)
# sums of f64 in other modes are slow: the simulator rounds each by itself
SOME = [form for form in (*DENSE[::9], *SPARSE[::19]) if form.product.rounding == "rn"]
MOVEMENTS = movement.movements()


def test_every_form_is_tried():
    tried = {(form.name, form.tokens) for form in (*DENSE, *SPARSE)}
    assert tried == set(mma_kernels.forms())
    by_shape = {
        (form.product.a_type, form.product.depth, form.selector)
        for form in SPARSE
        if form.mods["spvariant"] == "sp"
    }
    assert {key for key in by_shape if key[:2] == ("f16", 16)} == {("f16", 16, i) for i in range(4)}
    assert {key for key in by_shape if key[:2] == ("s8", 32)} == {("s8", 32, 0), ("s8", 32, 1)}
    assert {key for key in by_shape if key[:2] == ("u4", 128)} == {("u4", 128, 0)}
    assert [form.opcode.partition(".")[0] for form in MOVEMENTS].count("ldmatrix") == 6
    assert len(MOVEMENTS) == 13


def test_what_the_simulator_computes_is_right():
    rows = judge.rows_of(judge.simulated, SOME)
    assert [row["kind"] for row in rows] == [form.opcode for form in SOME]
    assert all(report.is_right(row) for row in rows)
    assert all(row["equal"] == row["of any size"] and row["worst"] == 0 for row in rows)
    assert not any("first" in row or "first, whole" in row for row in rows)


@pytest.mark.parametrize("form", SOME[::4], ids=lambda form: form.opcode)
def test_one_wrong_lane_is_seen(form):
    def wrong(form, given):
        found = judge.simulated(form, given)
        found[:, [3, 7]] = found[:, [7, 3]]
        return found

    (row,) = judge.rows_of(wrong, [form])
    assert not report.is_right(row)
    described = row["first, whole"]
    assert described["simulated"] != described["chip"]
    assert described["wrong"] > 0


def form_of(types, sums, shape="m16n8k16"):
    return next(
        form
        for form in DENSE
        if form.mods["atype"] == types and form.mods["dtype"] == form.mods["ctype"] == sums
        and form.mods["shape"] == shape
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "sums", "right"), [("f16", "f32", True), ("f64", "f64", False)])
def test_numbers_of_any_size_may_differ_within_the_bound_but_for_f64(kind, sums, right):
    form = form_of(kind, sums)
    size = np.float32 if sums == "f32" else np.float64

    def beside(form, given):
        found = judge.simulated(form, given).view(size)
        return np.nextafter(found, np.float64(np.inf).astype(size)).view(np.uint8)

    given = operands.draw(form, whole=False)
    got, equal, worst = judge.judge(form, False, given, beside(form, given))
    assert got.all() == right
    assert not equal.any()
    assert (0 < worst < 1) == right
    got, _, _ = judge.judge(form, True, given, beside(form, given))
    assert not got.any()


def test_a_number_beyond_the_bound_is_wrong():
    form = form_of("bf16", "f32")
    given = operands.draw(form, whole=False)
    found = judge.simulated(form, given)
    found.view(np.float32)[0, 0, 0] += np.float32(1e-3)
    found.view(np.float32)[0, 1, 0] = np.nan
    got, _, worst = judge.judge(form, False, given, found)
    assert (~got).sum() == 2
    assert worst == np.inf


def test_the_bound_is_that_of_halves_where_ptx_says_so():
    form = form_of("f16", "f16")
    given = operands.draw(form, whole=False)
    in_halves = judge.bound_of(
        form.product, form.product.operands(given.a[0], given.b[0], given.c[0])
    )
    form = form_of("f16", "f32")
    given = operands.draw(form, whole=False)
    in_single = judge.bound_of(
        form.product, form.product.operands(given.a[0], given.b[0], given.c[0])
    )
    assert 0.01 < np.median(in_halves) < 0.5
    assert np.median(in_single) < 1e-4


def test_operands_wrap_around_and_metadata_come_in_any_order():
    form = next(form for form in SPARSE if form.product.a_type == "s8")
    given = operands.draw(form, whole=False)
    fields = operands.fields_of(form, given.words[0])
    assert ((fields & 3) > (fields >> 2)).any()
    fields = operands.fields_of(form, operands.draw(form, whole=True).words[0])
    assert ((fields & 3) < (fields >> 2)).all()
    d = judge.simulated(form, given).view(np.int32)
    c = given.c.view(np.int32)
    assert (np.abs(c.astype(np.int64)) > 2**31 - 2**16).all()
    assert (np.sign(d) != np.sign(c)).any() or form.product.saturates


def test_matrix_movement_is_compared():
    rows = movement.rows_of(movement.simulated, MOVEMENTS)
    assert all(report.is_right(row) for row in rows)

    def wrong(form, given):
        out, after = movement.simulated(form, given)
        out, after = out.copy(), after.copy()
        if form.name == "stmatrix":
            after[:, 5] ^= 1
        else:
            out[:, 9, 0] ^= 1 << 16
        return out, after

    assert not any(report.is_right(row) for row in movement.rows_of(wrong, MOVEMENTS))


def test_the_table_has_a_line_a_form():
    rows = judge.rows_of(judge.simulated, SPARSE[:4]) + movement.rows_of(
        movement.simulated, MOVEMENTS[:1]
    )
    rows[1] |= {"as decoded": 5, "worst": 2.0, "first": {"chip": 1.0}}
    lines = report.table(rows, {"chip": "X"}).splitlines()
    kind = SPARSE[0].opcode.partition(" ")[0]
    count = rows[0]["tried"]
    half = count // 2
    assert SPARSE[3].opcode.startswith(kind)
    assert (
        f"| {kind} | {3 * count + 5} of {4 * count} | {4 * half} of {4 * half} | 2.0000 |" in lines
    )
    assert f"`{SPARSE[1].opcode}`, the first that is not as simulated:" in lines
    assert '- first: {"chip": 1.0}' in lines
    assert f"| {MOVEMENTS[0].opcode} | 32 of 32 |" in lines


class FakeGpu:
    """Keeps what is uploaded; a launch computes as the simulator does."""

    def __init__(self):
        self.texts, self.arrays, self.launches = [], [], []

    def load(self, text):
        self.texts.append(text)
        return text

    def upload(self, array):
        self.arrays.append(array)
        return len(self.arrays) - 1

    def launch(self, module, name, grid, smem, values, types):
        assert name in module
        assert len(values) == len(types)
        self.launches.append((name, grid, values))

    def fetch(self, pointer, like):
        assert self.arrays[pointer].shape == like.shape
        return self.arrays[pointer].copy()


def test_a_part_runs_every_form_once_for_each_kind_of_operands(monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setattr(measure, "_free", lambda pointers: None)
    monkeypatch.setattr(measure.forms, "forms", lambda sparse: (SPARSE if sparse else DENSE)[:3])
    monkeypatch.setattr(measure, "AT_ONCE", 2)
    rows = measure.measure_part(gpu, "mma.sp")
    assert [row["kind"] for row in rows] == [form.opcode for form in SPARSE[:3]]
    assert [text.count("__global__") for text in gpu.texts] == [2, 1]
    assert [(name, grid) for name, grid, _ in gpu.launches] == [
        ("form_0", 8), ("form_0", 8), ("form_1", 8), ("form_1", 8), ("form_0", 8), ("form_0", 8),
    ]  # fmt: skip
    assert not any(report.is_right(row) for row in rows)  # the results were never written
    assert json.loads(json.dumps(rows))[0]["first"]["wrong"] > 0
    rows = measure.measure_part(FakeGpu(), "matrices")
    assert len(rows) == 13
    assert not any(report.is_right(row) for row in rows)


def test_kernels_compile():
    device = pytest.importorskip("benchmarks.calibration.layouts.device")
    assert device.compile_text(movement.text_of(MOVEMENTS))[:4] == b"\x7fELF"
    assert device.compile_text(forms.text_of(SOME))[:4] == b"\x7fELF"


@pytest.mark.slow
@pytest.mark.parametrize("all_", [DENSE, SPARSE])
def test_all_kernels_compile(all_):
    device = pytest.importorskip("benchmarks.calibration.layouts.device")
    for start in range(0, len(all_), measure.AT_ONCE):
        some = all_[start : start + measure.AT_ONCE]
        assert device.compile_text(forms.text_of(some))[:4] == b"\x7fELF"
