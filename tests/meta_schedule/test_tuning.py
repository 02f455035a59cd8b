"""tune(): from a module to checked records; resumed, interrupted, killed; bad arguments."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import tvm

import tvm_hopper
from tests.meta_schedule.stand_ins import FormulaRunner, NoteBuilder, formula
from tvm_hopper import schedule as hs
from tvm_hopper.errors import TuningError
from tvm_hopper.meta_schedule import TuningReport, tuning
from tvm_hopper.meta_schedule.annotations import configurations_of
from tvm_hopper.meta_schedule.checking import EQUAL, WRONG, Simulated, Verdict, no_check
from tvm_hopper.meta_schedule.configurations import from_text
from tvm_hopper.meta_schedule.database import RECORDS, WORKLOADS, Database, merge
from tvm_hopper.meta_schedule.finding import lookup
from tvm_hopper.meta_schedule.journal import FILE, read_lines
from tvm_hopper.meta_schedule.scheduling import schedule_with
from tvm_hopper.meta_schedule.tasks import find_tasks
from tvm_hopper.meta_schedule.workers.pool import NOT_TRIED
from tvm_hopper.testing import memory_bound, workloads

TARGET = "nvidia/nvidia-h200"
COPY = memory_bound.copy(64, 256)
KEY = find_tasks(COPY, TARGET)[0].problem.key


def tune(mod, work_dir, trials, **given):
    given = {"runner": FormulaRunner(), "builder": NoteBuilder(), "check": no_check, **given}
    return tvm_hopper.tune(mod, TARGET, trials=trials, work_dir=work_dir, progress=False, **given)


def trials_of(work_dir):
    return [x for x in read_lines(Path(work_dir)) if x["is"] == "trial"]


def test_a_run_measures_checks_and_keeps(tmp_path):
    database = tune(COPY, tmp_path, 12, check=Simulated(30))
    made = database.trials(KEY)
    assert len(made) == 12
    assert made[0].text == "pointwise"
    assert len({x.kernel for x in made}) == 12
    winner = database.winner(KEY)
    assert winner.seconds == min(x.seconds for x in made) == formula(winner.text)
    assert database.verdict(KEY, winner) == EQUAL
    assert Database(tmp_path).winner(KEY) == winner


def test_processes_that_schedule_change_nothing(tmp_path, monkeypatch):
    made = []
    for count in (0, 1):
        monkeypatch.setattr(tuning, "spare_processes", lambda _, n=count: n)
        tune(COPY, tmp_path / str(count), 12)
        rows = trials_of(tmp_path / str(count))
        made.append([(x["configuration"], x["kernel"], x["seconds"]) for x in rows])
    assert made[0] == made[1]


def test_it_goes_on_where_it_ended(tmp_path):
    tune(COPY, tmp_path, 5, batch=2)
    runner = FormulaRunner()
    database = tune(COPY, tmp_path, 9, runner=runner)
    assert len(runner.texts) == 4
    assert len({x.kernel for x in database.trials(KEY)}) == 9
    again = FormulaRunner()
    tune(COPY, tmp_path, 9, runner=again)
    assert again.texts == []


def test_failures_are_recorded_and_do_not_win(tmp_path):
    def some(text):
        return None if "chunks=2" in text else formula(text)

    builder = NoteBuilder(lambda text: "threads=64" in text)
    database = tune(COPY, tmp_path, 30, runner=FormulaRunner(some), builder=builder)
    errors = {x.error for x in database.trials(KEY) if x.seconds is None}
    assert errors == {"build: ptxas: no room", "run: GPU 0: illegal address"}
    assert database.winner(KEY).seconds is not None


@pytest.mark.parametrize("who", ["builder", "runner"])
def test_what_nobody_tried_is_no_trial(tmp_path, who):
    """All GPUs, servers or processes that build are gone: nothing is held against kernels."""
    left = 10

    def gone(text):
        nonlocal left
        left -= 1
        return left < 0

    runner, builder = FormulaRunner(), NoteBuilder()
    if who == "builder":
        builder = NoteBuilder(gone, f"{NOT_TRIED}no worker is left: a (out of memory)")
    else:
        seconds = lambda text: None if gone(text) else formula(text)  # noqa: E731
        runner = FormulaRunner(seconds, f"{NOT_TRIED}no worker is left: a (off the bus)")
    told = rf"no worker is left: a .*, after 10 trials; need .*; the same .*{tmp_path.name} has"
    with pytest.raises(TuningError, match=told):
        tune(COPY, tmp_path, 30, runner=runner, builder=builder)
    assert len(trials_of(tmp_path)) == 10
    database = tune(COPY, tmp_path, 30)
    assert len(database.trials(KEY)) == 30
    assert all(x.seconds is not None for x in database.trials(KEY))


def test_a_wrong_winner_is_recorded_and_the_next_one_taken(tmp_path):
    seen = []

    def check(problem, config):
        seen.append(config)
        return Verdict(WRONG if len(seen) < 3 else EQUAL, "test", "told to")

    database = tune(COPY, tmp_path, 8, check=check)
    ranked = database.ranked(KEY)
    assert [x.config for x in ranked[:3]] == seen
    assert [database.verdict(KEY, x) for x in ranked[:4]] == [WRONG, WRONG, EQUAL, ""]
    assert database.winner(KEY) == ranked[2]


def test_no_winner_where_all_are_wrong(tmp_path):
    database = tune(COPY, tmp_path, 3, check=lambda p, c: Verdict(WRONG, "test"))
    assert database.winner(KEY) is None
    assert (tmp_path / RECORDS).read_text() == ""


def test_trials_are_spread_and_never_more_than_asked_for(tmp_path):
    mod = tvm.IRModule(
        {
            "a": COPY["main"].with_attr("global_symbol", "a"),
            "b": memory_bound.rms_norm(64, 256)["main"].with_attr("global_symbol", "b"),
            "c": COPY["main"].with_attr("global_symbol", "c"),
        }
    )
    database = tune(mod, tmp_path, 11)
    counts = Counter(x["workload"] for x in trials_of(tmp_path))
    assert sum(counts.values()) == 11
    assert len(counts) == 2
    assert min(counts.values()) >= 3
    assert len(database.modules[KEY]) == 3  # a and c by their names, and without one
    assert len((tmp_path / WORKLOADS).read_text().splitlines()) == 5


def test_ctrl_c_leaves_a_whole_database(tmp_path):
    calls = []

    def interrupt(text):
        calls.append(text)
        if len(calls) == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return formula(text)

    with pytest.raises(KeyboardInterrupt):
        tune(COPY, tmp_path, 40, runner=FormulaRunner(interrupt), batch=3)
    database = Database(tmp_path)
    kept = database.trials(KEY)
    assert 3 <= len(kept) <= 9
    assert database.winner(KEY) is not None
    assert (tmp_path / RECORDS).read_text()
    again = tune(COPY, tmp_path, 12)
    assert len({x.kernel for x in again.trials(KEY)}) == 12


def test_symbolic_rows_are_tuned_for_each_class(tmp_path, monkeypatch):
    monkeypatch.setattr(hs, "choose_classes", lambda *args, **given: (16, 256))
    mod = workloads.matmul("m", 128, 128, out_dtype="float16")
    database = tune(mod, tmp_path, 4)
    (classes,) = database.classes.values()
    assert [rows for rows, _ in classes["bounds"]] == sorted(rows for rows, _ in classes["bounds"])
    assert {key for _, key in classes["bounds"]} == set(database.workloads)
    assert all(len(database.trials(key)) >= 1 for _, key in classes["bounds"])


def test_what_was_tuned_for_one_number_of_rows_is_carried_back(tmp_path):
    func = memory_bound.rms_norm("n", 256)["main"]
    database = tune(memory_bound.rms_norm("n", 256), tmp_path, 6)
    found = lookup(database, func, TARGET)
    (key,) = database.workloads
    assert found == database.winner(key).config != hs.RowReductionConfig()
    assert configurations_of(schedule_with(func, found)) == [found]

    def choice_is_best(text):
        return 1e-6 if text == "row_reduction" else formula(text)

    folder = tmp_path / "choice"
    runner = FormulaRunner(choice_is_best)
    database = tune(memory_bound.rms_norm("n", 256), folder, 3, runner=runner)
    found = lookup(database, func, TARGET)  # that of these rows: of any it is another one
    assert found == from_text(database.workloads[key]["choice"])
    assert found.threads


def test_one_function_gets_no_more_than_its_share_and_time_ends_a_run(tmp_path):
    mod = tvm.IRModule(
        {
            "a": COPY["main"].with_attr("global_symbol", "a"),
            "b": memory_bound.rms_norm(64, 256)["main"].with_attr("global_symbol", "b"),
        }
    )
    database = tune(mod, tmp_path, 50, each=5)
    assert {database.ended(x) for x in database.workloads} == {"5 trials"}
    assert sorted(Counter(x["workload"] for x in trials_of(tmp_path)).values()) == [5, 5]

    def slow(text):
        time.sleep(0.3)
        return formula(text)

    begin = time.monotonic()
    given = {"runner": FormulaRunner(slow), "batch": 2}
    database = tune(mod, tmp_path / "late", 200, seconds=1.0, **given)
    assert {database.ended(x) for x in database.workloads} == {"the time was up"}
    assert time.monotonic() - begin < 60
    assert 2 <= len(trials_of(tmp_path / "late")) < 50


def test_why_a_search_ended_is_known_until_it_goes_on(tmp_path):
    most = len(find_tasks(COPY, TARGET)[0].problem.configurations())
    assert tune(COPY, tmp_path, 3).ended(KEY) == ""  # all that was asked for
    assert tune(COPY, tmp_path, 3 + most).ended(KEY) == (why := "every configuration was tried")
    rows = [x for x in read_lines(tmp_path) if x["is"] == "end"]
    assert tune(COPY, tmp_path, 9 + most).ended(KEY) == why
    assert [x for x in read_lines(tmp_path) if x["is"] == "end"] == rows
    text = str(TuningReport(tmp_path))
    assert f"main: {rows[0]['trials']} trials, {why}" in text


@pytest.mark.parametrize("trials", [0, -1, 1.5, True, "64", None])
def test_a_number_of_trials_that_is_none(trials, tmp_path):
    with pytest.raises(TuningError, match=r"trials=.*; need a number from 1 to"):
        tune(COPY, tmp_path, trials)


def test_illegal_arguments(tmp_path):
    with pytest.raises(TuningError, match="batch=0"):
        tune(COPY, tmp_path, 4, batch=0)
    with pytest.raises(TuningError, match="each=0; need a number from 1 to"):
        tune(COPY, tmp_path, 4, each=0)
    with pytest.raises(TuningError, match="seconds=True; need a number above 0"):
        tune(COPY, tmp_path, 4, seconds=True)
    with pytest.raises(TuningError, match="seconds=-1; need a number above 0"):
        tune(COPY, tmp_path, 4, seconds=-1)
    with pytest.raises(TuningError, match="found a runner and a tracker; need one of the two"):
        tune(COPY, tmp_path, 4, tracker="127.0.0.1:9190/h200")
    with pytest.raises(TuningError, match="found str; need an IRModule"):
        tune("module.py", tmp_path, 4)
    with pytest.raises(TuningError, match="found no PrimFunc; need a PrimFunc in plain loops"):
        tune(tvm.IRModule({}), tmp_path, 4)
    with pytest.raises(TuningError, match="found cuda sm_80; need a Hopper GPU"):
        tvm_hopper.tune(COPY, {"kind": "cuda", "arch": "sm_80"}, work_dir=tmp_path)
    with pytest.raises(TuningError, match="target: found none"):
        tvm_hopper.tune(COPY, work_dir=tmp_path)
    with pytest.raises(TuningError, match="found llvm"):
        tvm_hopper.tune(COPY, "llvm", work_dir=tmp_path)
    for what in ("junk", 5):
        with pytest.raises(TuningError, match=r"^target: found .*; need a Hopper GPU"):
            tvm_hopper.tune(COPY, what, work_dir=tmp_path)
    for name in ("runner", "builder", "check"):
        with pytest.raises(TuningError, match=f"^tune: found {name}='x'; need "):
            tune(COPY, tmp_path, 4, **{name: "x"})
    with pytest.raises(TuningError, match="seconds='3'; need a number above 0"):
        tune(COPY, tmp_path, 4, seconds="3")
    with pytest.raises(TuningError, match="tune: found '', of type str; need the work_dir"):
        tune(COPY, "", 4)
    assert not (tmp_path / FILE).exists()


def test_databases_are_merged(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    tune(COPY, one, 4)
    tune(memory_bound.rms_norm(64, 256), two, 3)
    both = merge(tmp_path / "both", one, two)
    assert set(both.workloads) == set(Database(one).workloads) | set(Database(two).workloads)
    assert both.winner(KEY) == Database(one).winner(KEY)
    before = read_lines(tmp_path / "both")
    merge(tmp_path / "both", one, two)
    assert read_lines(tmp_path / "both") == before
    assert len([x for x in before if x["is"] == "machine"]) == 1
    assert len((tmp_path / "both" / RECORDS).read_text().splitlines()) == 2


def test_machines_are_renumbered(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    tune(COPY, one, 3)
    tune(memory_bound.rms_norm(64, 256), two, 3)
    text = (two / FILE).read_text()
    (two / FILE).write_text(text.replace('"gpus":[', '"host":"other","gpus":['))
    both = merge(tmp_path / "both", one, two)
    assert [x["number"] for x in both.machines] == [0, 1]
    assert {x["machine"] for x in trials_of(tmp_path / "both")} == {0, 1}


def test_what_cannot_be_merged(tmp_path):
    with pytest.raises(TuningError, match="found no records"):
        merge(tmp_path / "both", tmp_path / "none")
    tune(COPY, tmp_path / "one", 2)
    log = tmp_path / "one" / FILE
    rows = log.read_text().splitlines()
    header = json.dumps({**json.loads(rows[0]), "tvm": "0.1"})
    log.write_text("\n".join([header, *rows[1:]]) + "\n")
    with pytest.raises(TuningError, match=r"found records of tvm 0\.1"):
        merge(tmp_path / "both", tmp_path / "one")


def test_stock_files_are_made_anew(tmp_path):
    database = tune(COPY, tmp_path, 4)
    texts = {x: (tmp_path / x).read_text() for x in (RECORDS, WORKLOADS)}
    (tmp_path / RECORDS).write_text("[")
    os.remove(tmp_path / WORKLOADS)
    database.write_stock()
    assert {x: (tmp_path / x).read_text() for x in texts} == texts
    for link in ("database_workload.new", RECORDS):  # of a folder that others made
        (tmp_path / link).unlink(missing_ok=True)
        (tmp_path / link).symlink_to(tmp_path / "somebody")
    (tmp_path / WORKLOADS).write_bytes(b"\xff")
    database.write_stock()
    assert texts == {x: (tmp_path / x).read_text() for x in texts}
    assert not (tmp_path / "somebody").exists()


def test_stock_files_that_cannot_be_written(tmp_path):
    (tmp_path / WORKLOADS).mkdir()
    with pytest.raises(TuningError, match=f"{WORKLOADS}: found no way to write on"):
        tune(COPY, tmp_path, 2)


def test_a_record_of_another_kind_of_kernel(tmp_path):
    tune(COPY, tmp_path, 3)
    log = tmp_path / FILE
    rows = [json.loads(x) for x in log.read_text().splitlines()]
    next(x for x in rows if x["is"] == "trial")["configuration"] = "row_reduction threads=64"
    log.write_text("".join(f"{json.dumps(x)}\n" for x in rows))
    told = "a trial of main: found 'row_reduction threads=64' for 'pointwise .*'; need a config"
    for use in (Database, lambda folder: tune(COPY, folder, 4)):
        with pytest.raises(TuningError, match=told):
            use(tmp_path)


def test_a_record_with_a_hostile_configuration(tmp_path):
    tune(COPY, tmp_path, 2)
    log = tmp_path / FILE
    log.write_text(log.read_text().replace('"configuration":"pointwise"', '"configuration":"rm"'))
    with pytest.raises(TuningError, match=f"{FILE}, a trial: found 'rm'; need one of the kinds"):
        Database(tmp_path)
