"""Schedules in the forms of TVM's tests at other sizes: one option, right on both chips."""

from __future__ import annotations

import pytest
import tvm
from tvm import te
from tvm.ir.transform import PassContext

from tvm_hopper import verify
from tvm_hopper.requests import keys
from tvm_hopper.testing import ampere_forms, copies
from tvm_hopper.testing.ampere_forms import Form
from tvm_hopper.testing.ampere_schedules import A100

TARGETS = pytest.mark.parametrize("target", ["nvidia/nvidia-h200", A100], ids=["sm_90a", "sm_80"])
FORMS = {
    "float16 by 16 bytes": lambda: ampere_forms.scaled(
        64, 128, Form((16, 64), 4, 32, chunk=8, vector=4), "float16"
    ),
    "float32 by 8 bytes": lambda: ampere_forms.scaled(
        64, 128, Form((8, 64), 3, 64, chunk=2, vector=4)
    ),
    "float32 by 4 bytes": lambda: ampere_forms.scaled(
        24, 64, Form((8, 32), 3, 64, chunk=1, vector=1)
    ),
    "copied out by 4 bytes": lambda: ampere_forms.scaled(
        24, 64, Form((8, 32), 3, 64, chunk=1, vector=1, store=1)
    ),
    "copied out by 8 bytes": lambda: ampere_forms.scaled(
        32, 64, Form((8, 32), 2, 64, chunk=4, vector=2, store=2)
    ),
    "stencil": lambda: ampere_forms.five_point(16, 64, Form((4, 32), 4, 64, chunk=1, vector=1)),
    "stencil, ragged": lambda: ampere_forms.five_point(
        14, 60, Form((4, 32), 2, 64, chunk=1, vector=1)
    ),
    "rows by 8": lambda: ampere_forms.rows(2, "float16", 8),
    "rows by 1": lambda: ampere_forms.rows(2, "float32", 1),
    "rows, doubled between": lambda: ampere_forms.doubled_rows(2),
    "rows, stencil": lambda: ampere_forms.stencil_rows(2),
    "columns": lambda: ampere_forms.columns(2, 64, 9),
    "columns, padded": lambda: ampere_forms.columns(2, 16, 7, pad=True),
}


def _doubled() -> tvm.IRModule:
    a = te.placeholder((64, 128), "float32", name="A")
    return tvm.IRModule(
        {"main": te.create_prim_func([a, te.compute(a.shape, lambda *i: a(*i) * 2)])}
    )


def _stencil() -> tvm.IRModule:
    a = te.placeholder((62, 128), "float32", name="A")

    def value(i, j):
        around = a[i, j + 1] + a[i + 1, j] + a[i + 1, j + 2] + a[i + 2, j + 1]
        return around * te.const(0.25, "float32") + a[i + 1, j + 1]

    return tvm.IRModule({"main": te.create_prim_func([a, te.compute((60, 126), value)])})


PLAIN = {
    "rows by 8": lambda: copies.copy(64, 128, dtype="float16"),
    "rows by 1": lambda: copies.copy(64, 128, dtype="float32"),
    "rows, doubled between": lambda: _doubled(),
    "rows, stencil": lambda: _stencil(),
}  # where groups and waits stand in the schedule


@pytest.mark.sampled(every=4)
@TARGETS
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_right(name, target):
    mod = FORMS[name]()
    with PassContext(config={keys.ASYNC_COPY: keys.AUTO, keys.STRICT: True}):
        tvm.compile(mod, target=target)  # nothing is left to TVM
        plain = PLAIN.get(name, FORMS[name])()
        report = verify(mod, target=target, against=plain, runs=(("on_wait", 0), ("random", 1)))
    assert report.verdict == "clean", str(report)
    assert report.values.checked
