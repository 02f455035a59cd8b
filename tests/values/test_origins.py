"""Where the plain program of a schedule lives, and where it is lost."""

import subprocess
import sys
import time

import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.s_tir.schedule import Trace

import tvm_hopper
from tvm_hopper import schedule as hs
from tvm_hopper.errors import ScheduleError
from tvm_hopper.schedule import origins
from tvm_hopper.schedule.origins import plain_of
from tvm_hopper.testing import forms, pointwise, workloads

CONFIG = hs.MatmulConfig((64, 64, 64), stages=2, consumers=1)
count = iter(range(64, 10**6, 64))


@pytest.fixture
def mod():
    """Return a program that no other test has."""
    return workloads.matmul(128, 64, next(count))


def scheduled(mod):
    sch = s_tir.Schedule(mod)
    hs.matmul(sch, "C", CONFIG)
    return sch


def is_plain(found, mod):
    return found is not None and bool(tvm_ffi.structural_equal(found, mod))


def test_a_schedule_and_its_module_know_it(mod):
    sch = scheduled(mod)
    assert is_plain(plain_of(sch), mod)
    assert is_plain(plain_of(sch.mod), mod)
    assert plain_of(s_tir.Schedule(workloads.matmul(64, 64, 32))) is None
    assert plain_of(3) is None


def test_primitives_behind_the_last_helper_leave_the_schedule_s_note(mod):
    sch = scheduled(mod)
    loops = sch.get_loops(sch.get_sblock("C_local"))
    sch.annotate(loops[-1], "pragma_unroll", 1)
    assert is_plain(plain_of(sch), mod)
    assert plain_of(sch.mod) is None  # of other content than the helper left


def test_primitives_before_the_first_step_belong_to_the_plain_program():
    mod = pointwise.exp_add(64, 256)
    sch = s_tir.Schedule(mod)
    rows, columns = sch.get_loops("C")
    outer, k0, _ = sch.split(rows, [None, 4, 8])
    sch.bind(outer, "blockIdx.x")
    copy = sch.cache_read("C", 0, "shared.dyn")
    sch.compute_at(copy, k0)
    first = sch.mod
    hs.async_copy(sch, copy)
    sch.bind(columns, "threadIdx.x")
    hs.pipeline(sch, k0, stages=2)
    assert is_plain(plain_of(sch), first)


def test_copies_know_it(mod):
    sch = scheduled(mod)
    copy = sch.copy()
    block = copy.get_sblock("C_local")
    copy.annotate(copy.get_loops(block)[-1], "pragma_unroll", 1)
    assert is_plain(plain_of(copy), mod)


def test_a_product_that_is_rewritten_first_knows_what_was_written():
    mod = forms.in_place(128, 64, next(count), "float16")
    assert is_plain(plain_of(scheduled(mod)), mod)
    assert is_plain(plain_of(hs.normalize(mod)), mod)


def test_a_replayed_trace_and_a_module_from_json_are_known_by_content(mod):
    sch = scheduled(mod)
    fresh = s_tir.Schedule(mod)
    sch.trace.apply_to_schedule(fresh, remove_postproc=False)
    assert is_plain(plain_of(fresh), mod)
    saved = s_tir.Schedule(mod)
    Trace.apply_json_to_schedule(sch.trace.as_json(), saved)
    assert is_plain(plain_of(saved), mod)
    assert is_plain(plain_of(tvm.ir.load_json(tvm.ir.save_json(sch.mod))), mod)


@pytest.mark.slow
def test_another_process_does_not_know_it(mod, tmp_path):
    file = tmp_path / "scheduled.json"
    file.write_text(tvm.ir.save_json(scheduled(mod).mod))
    code = (
        "import tvm, tvm_hopper, sys\n"
        f"mod = tvm.ir.load_json(open({str(file)!r}).read())\n"
        "report = tvm_hopper.verify(mod, runs=(('eager', 0),))\n"
        "print(report.verdict, report.values.text)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("clean not checked: no plain program is known")


def test_a_helper_that_refuses_notes_nothing(mod):
    sch = s_tir.Schedule(mod)
    with pytest.raises(ScheduleError):
        hs.matmul(sch, "C", hs.MatmulConfig((100, 64, 64)))
    assert plain_of(sch) is None


def test_two_plain_programs_of_one_module_are_none(mod):
    sch = scheduled(mod)
    other = workloads.matmul(128, 64, next(count))
    origins.note(sch.mod, other)
    assert plain_of(sch.mod) is None
    assert is_plain(plain_of(sch), mod)


def test_the_oldest_notes_go_first(monkeypatch):
    notes = origins._Notes()
    monkeypatch.setattr(origins, "MOST_NOTES", 3)
    mods = [workloads.matmul(64, 64, next(count)) for _ in range(5)]
    for number, mod in enumerate(mods):
        notes.put(number, mod)
    assert [notes.get(number) is None for number in range(5)] == [True, True, False, False, False]


def test_notes_change_neither_module_nor_trace_nor_code(mod, monkeypatch):
    noted = scheduled(mod)
    monkeypatch.setattr(origins, "noted", lambda sch: __import__("contextlib").nullcontext())
    plain = scheduled(mod)
    assert plain_of(plain) is not None  # by its content, which is the same
    assert tvm_ffi.structural_hash(noted.mod) == tvm_ffi.structural_hash(plain.mod)
    assert str(noted.trace) == str(plain.trace)
    assert "plain" not in noted.mod.script()


def test_notes_take_little_time(mod):
    sch = scheduled(mod)
    start = time.perf_counter()
    for _ in range(20):
        with origins.noted(sch):
            pass
    assert (time.perf_counter() - start) / 20 < 5e-3


def test_verify_of_a_module_uses_it(mod):
    report = tvm_hopper.verify(scheduled(mod).mod, runs=(("eager", 0),))
    assert report.values.checked
