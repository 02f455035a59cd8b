"""What a search starts from: trials of problems of the same form and part, the nearest first."""

import json

import pytest

import tvm_hopper
from tests.meta_schedule.stand_ins import FormulaRunner, NoteBuilder
from tvm_hopper.meta_schedule.checking import no_check
from tvm_hopper.meta_schedule.database import Database
from tvm_hopper.meta_schedule.journal import FILE
from tvm_hopper.meta_schedule.neighbours import near_trials
from tvm_hopper.meta_schedule.tasks import find_tasks
from tvm_hopper.testing import memory_bound, workloads

TARGET = "nvidia/nvidia-h200"


def problem(mod, target=TARGET):
    return find_tasks(mod, target)[0].problem


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tuned")
    given = {"runner": FormulaRunner(), "builder": NoteBuilder(), "check": no_check}
    for mod in (
        workloads.matmul(64, 64, 128),
        workloads.matmul(256, 128, 128),
        memory_bound.copy(64, 256),
    ):
        tvm_hopper.tune(mod, TARGET, trials=2, work_dir=made, progress=False, **given)
    return made


def test_the_nearest_come_first(folder):
    near = near_trials(Database(folder), problem(workloads.matmul(128, 128, 128)))
    assert [other.extents for other, _ in near] == [(256, 128, 128), (64, 64, 128)]
    for other, trials in near:
        assert len(trials) == 2
        assert other.estimates([other.resolved(x.config) for x in trials]).min() > 0


def test_itself_other_forms_and_other_parts_are_not_near(folder):
    database = Database(folder)
    near = near_trials(database, problem(workloads.matmul(64, 64, 128)))
    assert [other.extents for other, _ in near] == [(256, 128, 128)]
    assert near_trials(database, problem(workloads.matmul(64, 64, 128, "TN"))) == []
    assert near_trials(database, problem(workloads.matmul(128, 64, 128), "nvidia/nvidia-h20")) == []
    ((other, _),) = near_trials(database, problem(memory_bound.copy(128, 256)))
    assert other.extents == (64, 256)


def test_rows_that_lack_something_are_no_help_and_no_harm(folder, tmp_path):
    rows = [json.loads(x) for x in (folder / FILE).read_text().splitlines()]
    for row in rows:
        row.pop("multiply_adds", None)
    (tmp_path / FILE).write_text("".join(json.dumps(x) + "\n" for x in rows))
    assert near_trials(Database(tmp_path), problem(workloads.matmul(128, 128, 128))) == []
    for row in rows:
        row["multiply_adds"] = row["bytes"] = 1
        if row["is"] == "workload":
            row["extents"] = [4]
    (tmp_path / FILE).write_text("".join(json.dumps(x) + "\n" for x in rows))
    assert near_trials(Database(tmp_path), problem(workloads.matmul(128, 128, 128))) == []


def test_a_search_tries_them_second(folder, tmp_path):
    for name in (FILE,):
        (tmp_path / name).write_text((folder / name).read_text())
    runner = FormulaRunner()
    mod = workloads.matmul(128, 128, 128)
    near = near_trials(Database(folder), problem(mod))
    database = tvm_hopper.tune(
        mod,
        TARGET,
        trials=2,
        work_dir=tmp_path,
        progress=False,
        runner=runner,
        builder=NoteBuilder(),
        check=no_check,
    )
    first, second = database.trials(problem(mod).key)
    assert first.text == "matmul"
    known = {x.config for _, trials in near for x in trials}
    assert second.config in known or second.config.tile is not None
