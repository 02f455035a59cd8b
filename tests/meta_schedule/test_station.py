"""A server as a worker: what its answers, its silence and its end mean; retired ones are kept."""

import json
import threading
import time

import pytest

from tvm_hopper.errors import HopperError
from tvm_hopper.meta_schedule import rpc_runner
from tvm_hopper.meta_schedule.remote import station as stations
from tvm_hopper.meta_schedule.workers.pool import WorkerPool
from tvm_hopper.meta_schedule.workers.process import WorkerGone, WorkerLost, WorkerNotStarted


class Session:
    def __init__(self, measure):
        self.measure = measure

    def get_function(self, name):
        assert name == "tvm_hopper.rpc.measure"
        return self.measure


@pytest.fixture
def connect(monkeypatch):
    """Return a station in front of a function that stands for the remote one."""

    def made(measure):
        monkeypatch.setattr(stations.rpc, "connect", lambda *_: Session(measure))
        return stations.RemoteStation("10.0.0.1", 9090, "key")

    return made


def test_an_artifact_is_sent_whole(connect, make_artifact):
    seen = []

    def measure(request, *files):
        seen.extend([json.loads(request), *map(bytes, files)])
        return json.dumps({"seconds": [1.0]})

    station = connect(measure)
    path = make_artifact("one")
    reply = station.call({"artifact": path, "arguments": [], "repeats": 3}, 7)
    assert reply == {"seconds": [1.0]}
    assert station.name == "server 10.0.0.1:9090"
    assert seen[0] == {"arguments": [], "repeats": 3, "seconds": 7}
    assert [seen[1][:1], *seen[2:]] == [b"{", b"one", b"cubin one"]
    station.stop()


def test_a_contest_is_sent_with_all_its_artifacts(connect, make_artifact):
    seen = []

    def measure(request, *files):
        seen.extend([json.loads(request), *map(bytes, files)])
        return json.dumps({"verdicts": []})

    station = connect(measure)
    request = {"contest": [make_artifact("a"), make_artifact("b")], "library": {"majors": ["k"]}}
    station.call({**request, "reference": make_artifact("c")}, 7)
    assert seen[0] == {"contest": 2, "library": {"majors": ["k"]}, "seconds": 7}
    assert seen[2::3] == [b"a", b"b", b"c"]
    assert seen[3::3] == [b"cubin a", b"cubin b", b"cubin c"]
    station.call({**request, "reference": None}, 7)
    assert len(seen) == 10 + 7
    station.stop()


@pytest.mark.parametrize(
    ("reply", "error", "match"),
    [
        ({"lost": "it hung", "worker": "host GPU 1"}, WorkerLost, "^host GPU 1: it hung$"),
        ({"not_started": "no driver"}, WorkerNotStarted, "^no driver$"),
    ],
)
def test_what_broke_over_there_is_a_loss_here(connect, make_artifact, reply, error, match):
    station = connect(lambda *_: json.dumps(reply))
    with pytest.raises(error, match=match):
        station.call({"artifact": make_artifact("one")}, 1)
    station.stop()


def test_a_session_that_ends_takes_its_server_away(connect, make_artifact):
    def measure(*_):
        raise RuntimeError("some lines\ncode=kShutdown")

    station = connect(measure)
    with pytest.raises(WorkerGone, match="the session ended: code=kShutdown"):
        station.call({"artifact": make_artifact("one")}, 1)
    station.stop()


def test_a_server_that_never_answers_is_left_behind(connect, make_artifact, monkeypatch):
    monkeypatch.setattr(stations, "MORE_SECONDS", 0)
    monkeypatch.setattr(stations, "START_SECONDS", 0)
    station = connect(lambda *_: time.sleep(2))
    with pytest.raises(WorkerGone, match=r"no answer after 0.5 s"):
        station.call({"artifact": make_artifact("one")}, 0.5)
    station.interrupt()
    with pytest.raises(WorkerGone, match="no answer after 0 s"):
        station.call({"artifact": make_artifact("one")}, 100)
    station.stop()


def test_a_server_that_cannot_be_reached_is_named(monkeypatch):
    def refuse(*_):
        raise RuntimeError("Connect to 10.0.0.1:9090 failed")

    monkeypatch.setattr(stations.rpc, "connect", refuse)
    match = (
        r"server 10.0.0.1:9090: found no session with .* \(Connect to .* failed\); need a server"
    )
    with pytest.raises(HopperError, match=match):
        stations.RemoteStation("10.0.0.1", 9090, "key")


class Client:
    """A tracker with one free server."""

    def __init__(self, address):
        self.address = address

    def free(self):
        return 1

    def request(self):
        return "10.0.0.1", 9090, "key"

    def close(self):
        pass


class OddClient(Client):
    """A tracker that answers nonsense at first."""

    odd = 2

    def free(self):
        OddClient.odd -= 1
        if OddClient.odd >= 0:
            raise KeyError("queue_info")
        return 0


def test_nonsense_of_a_tracker_does_not_end_the_search_for_servers(monkeypatch):
    monkeypatch.setattr(rpc_runner, "TrackerClient", OddClient)
    monkeypatch.setattr(rpc_runner, "PERIOD", 0.02)
    pool = WorkerPool(seconds=1, waits=True)
    address = rpc_runner.TrackerAddress("10.0.0.1", 9190, "k")
    finder = rpc_runner.ServerFinder(OddClient(address), pool, patience=0.4)
    task = pool.submit({})
    assert task.wait(10)
    assert "found no server for 0.4 s" in task.reply["error"]
    assert OddClient.odd < 0
    finder.stop()
    pool.close()


def test_a_server_that_stands_still_does_not_keep_others_away(monkeypatch):
    thawed, asked = threading.Event(), []

    class Tracker(Client):
        def request(self):
            asked.append("")
            return "10.0.0.1", 9090, f"key {len(asked)}"

    class Station:
        name = "server"

        def __init__(self, _host, _port, match):
            if match == "key 1":
                thawed.wait()

        def call(self, *_):
            return {"seconds": []}

        def stop(self):
            pass

        interrupt = stop

    for name, value in {"PERIOD": 0.02, "CONNECT_SECONDS": 0.1, "RemoteStation": Station}.items():
        monkeypatch.setattr(rpc_runner, name, value)
    pool = WorkerPool(seconds=1, waits=True)
    address = rpc_runner.TrackerAddress("10.0.0.1", 9190, "k")
    finder = rpc_runner.ServerFinder(Tracker(address), pool, patience=5)
    task = pool.submit({})
    assert task.wait(10)
    assert task.reply == {"seconds": []}
    assert len(asked) >= 2
    thawed.set()
    finder.stop()
    pool.close()


def test_a_server_that_comes_when_all_is_over_is_given_back(connect):
    pool = WorkerPool(seconds=1, waits=True)
    address = rpc_runner.TrackerAddress("10.0.0.1", 9190, "k")
    finder = rpc_runner.ServerFinder(Client(address), pool, patience=0.5)
    connect(lambda *_: "{}")
    finder.stop()
    pool.close()
    finder._connect("10.0.0.1", 9090, "key")
    assert pool.names == []
    stopped = []

    class Late:
        name = "late"

        def stop(self):
            stopped.append(self.name)

    pool.add(Late())
    assert stopped == ["late"]
    assert pool.names == []


def test_a_retired_server_is_kept_away_from_the_queue(connect, make_artifact):
    measure = connect(lambda *_: json.dumps({"seconds": []}))._measure
    assert measure is not None
    pool = WorkerPool(seconds=1, waits=True)
    pool.retired["server 10.0.0.1:9090"] = "it hung"
    address = rpc_runner.TrackerAddress("10.0.0.1", 9190, "k")
    finder = rpc_runner.ServerFinder(Client(address), pool, patience=0.5)
    task = pool.submit({"artifact": make_artifact("one")})
    assert task.wait(10)
    assert "found no server for 0.5 s" in task.reply["error"]
    assert pool.names == []
    assert finder._kept
    finder.stop()
    pool.close()
