"""kill -9 at every place where a run writes: what resumes has lost nothing and doubled nothing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_hopper.meta_schedule.database import RECORDS, WORKLOADS, Database
from tvm_hopper.meta_schedule.journal import FILE, read_lines

ROOT = Path(__file__).parents[2]
# Children of one process, which has loaded TVM once: each is killed at a place of its own.
CODE = """
import os, signal, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from tests.meta_schedule.test_tuning import COPY, tune
from tests.meta_schedule.test_finals import ContestRunner, formula
from tvm_hopper.meta_schedule import database, finals, journal

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def nth(count, before, after=lambda *a: None):
    calls = []
    def wrap(function):
        def call(*a, **k):
            calls.append(1)
            if len(calls) == count:
                before(*a)
            found = function(*a, **k)
            if len(calls) == count:
                after(*a)
            return found
        return call
    return wrap

def half(journal_, row):
    import json
    text = json.dumps(row)
    journal_._file.write(text[: len(text) // 2].encode())
    journal_._file.flush()
    die()

nothing = lambda *a: None
PLACES = {
    "first line": ("append", nth(1, lambda *a: die())),
    "first line, half": ("append", nth(1, half)),
    "workload, half": ("append", nth(2, half)),
    "a trial, before": ("append", nth(5, lambda *a: die())),
    "a trial, half": ("append", nth(6, half)),
    "a trial, after": ("append", nth(7, nothing, lambda *a: die())),
    "the last round": ("hold", nth(1, lambda *a: die())),
    "its line, half": ("final", half),
    "the check, half": ("check", half),
    "the stock files": ("replace", nth(2, lambda *a: die())),
    "between them": ("replace", nth(2, nothing, lambda *a: die())),
    "after them": ("replace", nth(3, nothing, lambda *a: die())),
}

def arm(kind, what):
    append = journal.Journal.append
    if kind == "append":
        journal.Journal.append = what(append)
    elif kind == "hold":
        finals.Finals.hold = what(finals.Finals.hold)
    elif kind == "replace":
        database._replace = what(database._replace)
    else:
        def call(self, row):
            if row["is"] == kind:
                what(self, row)
            append(self, row)
        journal.Journal.append = call

for number, (name, place) in enumerate(PLACES.items()):
    folder = Path(sys.argv[1], str(number))
    child = os.fork()
    if not child:
        arm(*place)
        tune(COPY, folder, 6, runner=ContestRunner(formula), batch=2)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (name, status)
    log = folder / journal.FILE
    whole = [x for x in log.read_bytes().split(b"\\n")[:-1]] if log.exists() else []
    finals.as_tvm_has_it = lambda problem: None
    found = tune(COPY, folder, 6, runner=ContestRunner(formula), batch=2)
    assert log.read_bytes().split(b"\\n")[: len(whole)] == whole, name
    print(name, len(whole), flush=True)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [folder / str(i) for i in range(len(done.stdout.splitlines()))]


def test_what_resumes_has_lost_nothing_and_doubled_nothing(folders):
    assert len(folders) == 12
    expected = None
    for folder in folders:
        rows = read_lines(folder)
        kernels = [x["kernel"] for x in rows if x["is"] == "trial"]
        assert len(kernels) == len(set(kernels)) == 6
        kinds = [x["is"] for x in rows]
        assert kinds.count("header") == kinds.count("workload") == kinds.count("final") == 1
        assert kinds.count("check") == kinds.count("machine") == 1
        (key,) = Database(folder).workloads
        found = (folder / WORKLOADS).read_text()
        expected = expected or found
        assert found == expected
        (record,) = (folder / RECORDS).read_text().splitlines()
        assert json.loads(record)[0] == 0
        assert Database(folder).winner(key).seconds is not None


def test_nothing_of_a_killed_run_is_left_in_its_folder(folders):
    names = {FILE, RECORDS, WORKLOADS, "lock"}
    assert all({x.name for x in folder.iterdir()} == names for folder in folders)
    assert signal.SIGKILL == 9
