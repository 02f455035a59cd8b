"""Measuring over TVM's tracker on this machine: servers that crash, hang, come and go."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tvm
from tvm import rpc
from tvm.rpc import tracker as trackers
from tvm.s_tir import meta_schedule as ms

from tests.meta_schedule.test_runner import best, inputs, model_seconds
from tests.meta_schedule.test_worker_process import ends
from tvm_hopper.errors import HopperError
from tvm_hopper.meta_schedule import RpcRunner, fake_runner
from tvm_hopper.meta_schedule.remote import serve, session
from tvm_hopper.meta_schedule.remote.tracker import TrackerAddress, TrackerClient

KEY = "fake-h200"


@pytest.fixture(scope="module")
def tracker():
    made = trackers.Tracker(host="127.0.0.1", port=9390, port_end=9490, silent=True)
    yield TrackerAddress("127.0.0.1", made.port, KEY)
    made.terminate()


def comes(client, count, seconds=60):
    """Tell whether so many servers are known to the tracker, soon."""
    end = time.monotonic() + seconds
    while client.servers() < count and time.monotonic() < end:
        time.sleep(0.1)
    return client.servers() >= count


class Servers:
    """A group of fake servers in this process' care, watched by a thread."""

    def __init__(self, tracker, count, faults, folder):
        told = fake_runner.fake_settings(count, faults, folder, 0, 0.01, 0.02)
        devices = serve.fake_devices(count, dict(enumerate(told)))
        self.group = serve.ServerGroup(tracker, KEY, "127.0.0.1", devices)
        self.thread = threading.Thread(target=self.group.run, daemon=True)
        self.thread.start()
        self.client = TrackerClient(tracker)
        assert comes(self.client, count), "servers did not come"

    def close(self):
        self.group.stop()
        self.thread.join()
        self.client.close()


def run_and_kill(tracker, make_artifact, tmp_path, count, faults, trials, kills):
    """Run trials over servers, kill some in between; return the runner's retired ones."""
    servers = Servers(tracker, count, faults, tmp_path)
    runner = RpcRunner(str(tracker), seconds=0.5)
    try:
        paths = [make_artifact(f"k{i}", model_seconds(i)) for i in range(trials)]
        victims = servers.group.processes
        futures = runner.run(inputs(paths))
        assert not all(future.done() for future in futures)
        for i in range(kills):
            while sum(future.done() for future in futures) < (i + 1) * trials // (kills + 2):
                time.sleep(0.02)
            os.kill(victims[i], signal.SIGKILL)
        assert best(paths, futures) == paths[17]
        found = runner.take(paths[17])
        assert found.is_fake
        assert "fake GPU" in found.worker
        last = runner.contest([make_artifact("x", 2e-4), make_artifact("y", 1e-4)])()
        assert not isinstance(last, str), last
        assert last.sustained[0][0] > 1.5 * last.sustained[1][0]
        assert "fake GPU" in last.worker
        assert comes(servers.client, count - len(runner.retired)), "killed servers come back"
        return dict(runner.retired)
    finally:
        runner.close()
        pids = servers.group.processes
        servers.close()
        assert all(map(ends, pids))


def test_a_run_with_crashes_hangs_and_a_killed_server_ends_with_the_right_best(
    tracker, make_artifact, tmp_path
):
    faults = {1: ("hang", 4)}
    run_and_kill(tracker, make_artifact, tmp_path, 2, faults, trials=20, kills=1)


@pytest.mark.slow
def test_eight_servers_of_which_some_crash_hang_and_are_killed(tracker, make_artifact, tmp_path):
    faults = {1: ("segfault", 3), 2: ("hang", 1), 4: ("exit", 2), 5: ("segfault", 2)}
    retired = run_and_kill(tracker, make_artifact, tmp_path, 8, faults, trials=200, kills=3)
    assert all("no answer after" in text for text in retired.values())


def test_no_server_is_an_error_after_some_patience_and_they_may_come_later(tracker, make_artifact):
    address = TrackerAddress(tracker.host, tracker.port, "nobody")
    runner = RpcRunner(str(address), patience=0.5)
    (future,) = runner.run(inputs([make_artifact("one")]))
    match = "found no server for 0.5 s; need some; start them with `python -m tvm_hopper serve"
    assert match in str(future.result().error_msg)
    assert runner.servers == []
    runner.close()


def test_a_server_that_lacks_our_function_is_named(tracker, make_artifact):
    """One of TVM's own: it was told of no device."""
    told = TrackerAddress(tracker.host, tracker.port, "stock")
    server = rpc.Server(
        "127.0.0.1", 9590, 9690, tracker_addr=(told.host, told.port), key="stock", silent=True
    )
    runner = RpcRunner(str(told), patience=20)
    (future,) = runner.run(inputs([make_artifact("one")]))
    error = str(future.result().error_msg)
    assert "need" in error
    assert "`python -m tvm_hopper serve`" in error
    runner.close()
    server.terminate()


@pytest.mark.parametrize(
    "text", [9190, "", "host", "host:x/key", ":9190/key", "h:99999/k", "h:1", "h:1/"]
)
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(HopperError, match=r"need \"host:port/key\", as"):
        TrackerAddress.parse(text)


def test_a_tracker_that_is_not_there_is_one_clear_error_soon():
    begin = time.monotonic()
    with pytest.raises(HopperError, match=r"tracker 127.0.0.1:9: found no tracker \(.*; start one"):
        RpcRunner("127.0.0.1:9/k")
    assert time.monotonic() - begin < 5


def test_something_else_is_no_tracker():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer():
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(HopperError, match="something else answers there"):
            TrackerClient(TrackerAddress("127.0.0.1", port))
        thread.join()


def test_a_message_that_the_tracker_refuses_is_an_error(tracker, monkeypatch):
    client = TrackerClient(tracker)
    monkeypatch.setattr(trackers.base, "recvjson", lambda _: (trackers.base.TrackerCode.FAIL, None))
    with pytest.raises(OSError, match="the tracker answers -1"):
        client.free()
    client.close()


# -- the server's side


def test_a_session_measures_in_a_process_of_its_own(make_artifact, monkeypatch, tmp_path):
    counter = str(tmp_path / "requests")
    settings = {"fault": "segfault", "every": 2, "counter": counter}
    monkeypatch.setenv(session.SERVED, session.served("fake GPU 0", "fake", settings, "3"))
    monkeypatch.setattr(session.parent, "die_with_parent", lambda _: None)
    monkeypatch.setattr(session.parent, "watch_parent", lambda _: None)
    monkeypatch.setattr(session, "_worker", None)
    folder = Path(make_artifact("one")).parent
    files = [
        bytearray((folder / x).read_bytes()) for x in ("manifest.json", "host.ll", "device.cubin")
    ]
    call = lambda *parts: json.loads(session.measure(json.dumps({"seconds": 5}), *parts))  # noqa: E731
    assert call(*files)["is_fake"]
    lost = call(*files)
    assert lost["lost"].startswith("the process ended by signal SIGSEGV")
    assert lost["worker"].endswith("fake GPU 0")
    asked = json.dumps({"seconds": 5, "contest": 2, "library": None})
    compared = json.loads(session.measure(asked, *files, *files, *files))
    assert [x for x, _ in compared["verdicts"]] == ["unchecked"] * 2
    assert compared["worker"].endswith("fake GPU 0")
    assert "another device.cubin than its manifest says" in call(*files[:2], b"x")["error"]
    session._worker.stop()


def test_a_process_that_serves_nobody_refuses(monkeypatch):
    monkeypatch.delenv(session.SERVED, raising=False)
    monkeypatch.setattr(session, "_worker", None)
    with pytest.raises(HopperError, match="a server without a device"):
        session.measure("{}", b"", b"", b"")


def test_servers_of_this_machine_alone_are_no_use_to_a_tracker_elsewhere():
    from tvm_hopper import cli

    command = ["serve", "--tracker", "192.0.2.1:9190", "--key", "k", "--fake", "1"]
    assert cli.main(command) == cli.MISTAKE


def test_serve_ends_with_its_servers(tracker):
    place = f"{tracker.host}:{tracker.port}"
    command = ["serve", "--tracker", place, "--key", "ends", "--fake", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tvm_hopper", *command], stdout=subprocess.PIPE, text=True
    )
    try:
        said = process.stdout.readline()
        client = TrackerClient(TrackerAddress(tracker.host, tracker.port, "ends"))
        assert comes(client, 1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        client.close()
    finally:
        process.kill()
        process.communicate()
    assert "1 server(s)" in said
    assert "no authentication" in said
    assert children
    assert all(ends(int(pid)) for pid in children)


def test_the_function_is_known_wherever_tvm_is():
    assert tvm.get_global_func("tvm_hopper.rpc.measure") is not None
    assert ms.runner.RunnerInput is not None
