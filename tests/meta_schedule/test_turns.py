"""Processes of one device: loads run side by side, runs one after another."""

import itertools
import threading
import time

from tvm_hopper.meta_schedule.workers.turns import LOAD, RUN, Device


class Process:
    """Answers as a worker process does, and notes when it is busy with what."""

    def __init__(self, notes, seconds=0.02):
        self.name, self.about = "GPU 0", {"name": "H200"}
        self.notes, self.seconds = notes, seconds
        self.stopped = []

    def call(self, request, seconds):
        step = request.get("step") or "contest"
        if request.get("artifact") == "broken":
            return {"error": "no such file"}
        begin = time.monotonic()
        time.sleep(self.seconds)
        self.notes.append((step, begin, time.monotonic()))
        return {"seconds": [1.0]} if step == RUN else {}

    def stop(self):
        self.stopped.append("stop")

    def interrupt(self):
        self.stopped.append("interrupt")


def test_runs_never_overlap_and_loads_run_beside_them():
    notes: list = []
    stations = Device([Process(notes) for _ in range(2)]).stations

    def work(station):
        for _ in range(4):
            assert station.call({"artifact": "a"}, 5.0) == {"seconds": [1.0]}
        station.call({"contest": []}, 5.0)

    threads = [threading.Thread(target=work, args=(x,)) for x in stations]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    alone = sorted((begin, end) for step, begin, end in notes if step != LOAD)
    assert len(alone) == 10
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(alone))
    loads = [(begin, end) for step, begin, end in notes if step == LOAD]
    assert any(a < end and begin < b for a, b in loads for begin, end in alone)


def test_what_cannot_be_loaded_takes_no_turn():
    notes: list = []
    (station,) = Device([Process(notes)]).stations
    assert station.call({"artifact": "broken"}, 5.0) == {"error": "no such file"}
    assert not notes


def test_the_first_process_compares():
    """A library is loaded for that, once; the process may have something loaded meanwhile."""
    first, second = Process([]), Process([])
    for station in Device([first, second]).stations:
        station.call({"contest": []}, 5.0)
    assert [len(x.notes) for x in (first, second)] == [2, 0]


def test_a_station_is_its_process():
    process = Process([])
    (station,) = Device([process]).stations
    assert (station.name, station.about) == ("GPU 0", {"name": "H200"})
    station.interrupt()
    station.stop()
    assert process.stopped == ["interrupt", "stop"]
