"""Processes that crash, exit, raise and hang; none is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tvm_hopper.meta_schedule.workers.process import (
    ROOT,
    WorkerLost,
    WorkerNotStarted,
    WorkerProcess,
)

DEADLINE = 5.0


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ends(pid: int, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_running(pid)


def faulty(tmp_path, fault: str, every: int = 2) -> WorkerProcess:
    settings = {"fault": fault, "every": every, "counter": str(tmp_path / "requests")}
    return WorkerProcess("GPU 7", "fake", settings)


@pytest.mark.parametrize(
    ("fault", "seconds", "match"),
    [
        ("segfault", DEADLINE, "the process ended by signal SIGSEGV"),
        ("exit", DEADLINE, "the process ended by exit code 7"),
        ("hang", 0.3, r"no answer after 0.3 s; the process was killed"),
    ],
)
def test_a_worker_that_breaks_is_replaced(tmp_path, make_artifact, fault, seconds, match):
    worker, request = faulty(tmp_path, fault), {"artifact": make_artifact("one")}
    assert worker.call(request, DEADLINE)["is_fake"]
    first = worker.pid
    with pytest.raises(WorkerLost, match=match):
        worker.call(request, seconds)
    assert not is_running(first)
    assert worker.call(request, DEADLINE)["is_fake"]
    assert worker.pid != first
    worker.stop()


def test_an_exception_is_an_answer(tmp_path, make_artifact):
    worker = faulty(tmp_path, "exception", 1)
    reply = worker.call({"artifact": make_artifact("one")}, DEADLINE)
    assert reply == {"error": "fake fault: found a request to raise; need none"}
    pid = worker.pid
    reply = worker.call({"artifact": str(tmp_path)}, DEADLINE)
    assert "fake fault" in reply["error"]
    assert worker.pid == pid
    worker.stop()
    assert not is_running(pid)


def test_an_exception_of_others_comes_with_kind_and_place(make_artifact):
    worker = WorkerProcess("GPU 7", "fake", {"noise": "loud"})
    error = worker.call({"artifact": make_artifact("one")}, DEADLINE)["error"]
    assert error.startswith("ValueError: could not convert")
    assert "fake.py:" in error
    worker.stop()


def test_a_worker_that_cannot_start_says_why():
    worker = WorkerProcess("GPU 7", "fake", {"fault": "flood"})
    match = "cannot start: fault: found 'flood'; need one of segfault, hang, exit, exception"
    with pytest.raises(WorkerNotStarted, match=match):
        worker.call({"artifact": ""}, DEADLINE)
    assert worker.pid is None


def test_a_role_that_does_not_exist():
    worker = WorkerProcess("GPU 7", "no such role")
    with pytest.raises(WorkerNotStarted, match="cannot start: KeyError: 'no such role'"):
        worker.start()


def test_last_words_are_quoted(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "a seed that Python refuses")
    worker = WorkerProcess("GPU 7", "fake")
    with pytest.raises(WorkerNotStarted, match=r"exit code 1.*PYTHONHASHSEED must be"):
        worker.start()


def test_a_call_can_be_interrupted_from_another_thread(tmp_path, make_artifact):
    import threading

    worker = faulty(tmp_path, "hang", 1)
    worker.start()
    timer = threading.Timer(0.2, worker.interrupt)
    timer.start()
    with pytest.raises(WorkerLost, match="signal SIGKILL"):
        worker.call({"artifact": make_artifact("one")}, DEADLINE)
    timer.join()


# tvm_hopper without its __init__, which would import TVM
BARE = f"""
import sys, types
bare = sys.modules["tvm_hopper"] = types.ModuleType("tvm_hopper")
bare.__path__ = [{str(ROOT / "tvm_hopper")!r}]
"""
PARENT = """
from tvm_hopper.meta_schedule.workers.process import WorkerProcess
settings = {"fault": "hang", "every": 1, "counter": sys.argv[1]}
worker = WorkerProcess("GPU 7", "fake", settings)
worker.start()
print(worker.pid, flush=True)
worker.call({"artifact": ""}, 600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="by a signal of Linux")
def test_a_worker_that_hangs_ends_with_its_parent(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", BARE + PARENT, str(tmp_path / "requests")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = int(parent.stdout.readline())
    end = time.monotonic() + DEADLINE
    while not (tmp_path / "requests").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert is_running(pid)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert ends(pid)


def run_bare(code: str) -> int:
    code = BARE + "import tvm_hopper.meta_schedule.workers.parent as parent\n" + code
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_a_deadline_holds_in_the_worker_too():
    """An alarm whose default action kills: for one whose parent has forgotten it."""
    code = "import ctypes; parent.GRACE = 0; parent.alarm(0.2); ctypes.PyDLL(None).sleep(100)"
    assert run_bare(code) == -signal.SIGALRM
    assert run_bare("import time; parent.alarm(0.2); parent.alarm(0); time.sleep(0.4)") == 0


def test_a_process_whose_parent_is_another_ends_at_once():
    assert run_bare("parent.die_with_parent(1)") == 1
