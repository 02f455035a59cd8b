"""Who is blamed for a loss, who is retired, and that every task gets its answer."""

import threading
import time

import pytest

from tvm_hopper.meta_schedule.workers import pool as pools
from tvm_hopper.meta_schedule.workers.pool import WorkerPool
from tvm_hopper.meta_schedule.workers.process import WorkerGone, WorkerLost, WorkerNotStarted


class Station:
    """A worker whose behaviour is a function of the request."""

    def __init__(self, name, behave):
        self.name, self.behave = name, behave
        self.seen, self.stopped, self.interrupted = [], False, threading.Event()

    def call(self, request, seconds):
        self.seen.append(request["n"])
        return self.behave(self, request["n"])

    def stop(self):
        self.stopped = True

    def interrupt(self):
        self.interrupted.set()


def works(_station, n):
    time.sleep(0.002)
    return {"n": n}


def breaks(station, n):
    time.sleep(0.005)  # that others get their turn
    raise WorkerLost(f"broke over {n}")


def starts_not(station, n):
    raise WorkerNotStarted("cannot start: no driver")


def breaks_over(*bad):
    return lambda station, n: breaks(station, n) if n in bad else works(station, n)


def submit(pool, count):
    return [pool.submit({"n": n}) for n in range(count)]


def stops(station):
    """Tell whether a worker's thread has let it go, soon."""
    end = time.monotonic() + 5
    while not station.stopped and time.monotonic() < end:
        time.sleep(0.01)
    return station.stopped


def answers(tasks):
    assert all(task.wait(10) for task in tasks)
    return [task.reply for task in tasks]


def test_replies_come_back_to_their_tasks():
    pool = WorkerPool([Station("a", works), Station("b", works)], seconds=1)
    assert [x["n"] for x in answers(submit(pool, 20))] == list(range(20))
    assert pool.names == ["a", "b"]
    pool.close()


def test_a_worker_that_always_breaks_is_retired_and_nothing_is_lost():
    bad = Station("bad", breaks)
    pool = WorkerPool([bad, Station("good", works)], seconds=1)
    assert [x.get("n") for x in answers(submit(pool, 20))] == list(range(20))
    end = time.monotonic() + 5
    while pool.names != ["good"] and time.monotonic() < end:
        time.sleep(0.01)
    assert list(pool.retired) == ["bad"]
    assert 3 <= len(bad.seen) <= 3 * pools.UNJUDGED
    assert stops(bad)
    pool.close()


def test_a_task_that_breaks_two_workers_fails_and_neither_is_blamed():
    pool = WorkerPool([Station(x, breaks_over(*range(0, 20, 2))) for x in "ab"], seconds=1)
    tasks = submit(pool, 20)
    replies = answers(tasks)
    assert pool.names == ["a", "b"]
    for n, reply in list(enumerate(replies))[::2]:
        texts = {f"a: broke over {n}", f"b: broke over {n}"}
        assert set(reply["error"].split("; then ")) == texts
    pool.close()


def test_two_sick_workers_of_three_lose_nothing():
    stations = [Station("a", breaks), Station("b", breaks), Station("c", works)]
    pool = WorkerPool(stations, seconds=1)
    assert [x.get("n") for x in answers(submit(pool, 30))] == list(range(30))
    assert "c" in pool.names
    pool.close()


def test_workers_that_do_nothing_but_break_are_retired_even_if_tasks_are_to_blame():
    stations = [Station(x, breaks) for x in "ab"]
    pool = WorkerPool(stations, seconds=1, retire_after=1)
    replies = answers(submit(pool, 30))
    assert replies[-1]["error"].startswith("not tried: no worker is left: ")
    assert sum(len(x.seen) for x in stations) <= 2 * pools.UNJUDGED
    pool.close()


def test_losses_that_are_not_in_a_row_do_not_retire():
    every_third = Station("a", breaks_over(*range(0, 60, 3)))
    pool = WorkerPool([every_third], seconds=1, retire_after=2)
    replies = answers(submit(pool, 60))
    assert [n for n, x in enumerate(replies) if "error" in x] == list(range(0, 60, 3))
    assert pool.names == ["a"]
    pool.close()


def test_one_that_another_has_judged_is_retired_at_once():
    go = threading.Event()

    def slowly(station, n):
        go.set()
        time.sleep(0.05)
        return breaks(station, n)

    bad = Station("bad", slowly)
    pool = WorkerPool([bad], seconds=1)
    tasks = submit(pool, 30)
    go.wait(5)
    pool.add(Station("good", lambda station, n: time.sleep(0.02) or works(station, n)))
    answers(tasks)
    assert stops(bad)
    assert len(bad.seen) <= 5
    pool.close()


def test_the_last_worker_has_more_chances_and_then_all_fails_at_once():
    alone = Station("a", breaks)
    pool = WorkerPool([alone], seconds=1, retire_after=2)
    replies = answers(submit(pool, 30))
    assert len(alone.seen) == 2 * pools.UNJUDGED
    assert replies[0]["error"] == "a: broke over 0"
    last = {x["error"] for x in replies[2 * pools.UNJUDGED :]}
    assert last == {f"not tried: no worker is left: a (broke over {2 * pools.UNJUDGED - 1})"}
    assert pool.submit({"n": 1}).reply["error"].startswith("not tried: no worker is left")
    pool.close()


def test_a_worker_that_cannot_start_costs_no_task_an_attempt():
    pool = WorkerPool([Station("a", starts_not), Station("b", works)], seconds=1)
    assert all("error" not in x for x in answers(submit(pool, 10)))
    pool.close()
    pool = WorkerPool([Station("a", starts_not)], seconds=1)
    (reply,) = answers(submit(pool, 1))
    assert reply["error"] == "not tried: no worker is left: a (cannot start: no driver)"
    pool.close()


def test_an_exception_of_a_station_is_a_loss():
    def raises(station, n):
        raise ValueError("odd")

    pool = WorkerPool([Station("a", raises)], seconds=1)
    assert answers(submit(pool, 1)) == [{"error": "a: ValueError: odd"}]
    pool.close()


def test_a_worker_that_is_gone_takes_nothing_with_it():
    def gone(station, n):
        raise WorkerGone("its host is down")

    away = Station("away", gone)
    pool = WorkerPool([away], seconds=1, waits=True)
    tasks = submit(pool, 5)
    end = time.monotonic() + 5
    while pool.names and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(task.done() for task in tasks)
    assert not pool.retired
    pool.add(Station("b", works))
    assert [x["n"] for x in answers(tasks)] == list(range(5))
    assert away.seen == [0]
    pool.close()


def test_a_task_over_which_many_go_away_fails():
    def gone(station, n):
        raise WorkerGone("its host is down")

    pool = WorkerPool([], seconds=1, waits=True)
    task = pool.submit({"n": 0})
    for i in range(pools.MOST_VANISHED):
        assert not task.done()
        pool.add(Station(f"s{i}", gone))
        end = time.monotonic() + 5
        while pool.names and time.monotonic() < end:
            time.sleep(0.01)
    assert task.reply["error"].count("its host is down") == pools.MOST_VANISHED
    pool.close()


def test_workers_with_nothing_to_do_are_let_go():
    station = Station("a", works)
    pool = WorkerPool([station], seconds=1, waits=True)
    answers(submit(pool, 2))
    pool.release_idle(60)
    assert pool.names == ["a"]
    assert pool.idle == 1
    time.sleep(0.02)
    pool.release_idle(0.01)
    end = time.monotonic() + 5
    while pool.names and time.monotonic() < end:
        time.sleep(0.01)
    assert stops(station)
    waiting = pool.submit({"n": 1})
    assert pool.waiting == 1
    pool.fail_waiting("nobody came")
    assert waiting.reply == {"error": "not tried: nobody came"}
    pool.close()


def test_close_ends_what_runs_and_what_waits():
    def until_interrupted(station, n):
        station.interrupted.wait(10)
        raise WorkerLost("the process was stopped")

    station = Station("a", until_interrupted)
    pool = WorkerPool([station], seconds=1)
    tasks = submit(pool, 3)
    while not station.seen:
        time.sleep(0.01)
    pool.close()
    assert {x["error"] for x in answers(tasks)} == {"not tried: the runner was closed"}
    assert station.stopped


@pytest.mark.parametrize("count", [1, 3])
def test_a_future_can_be_asked_without_waiting(count):
    go = threading.Event()

    def waits(station, n):
        go.wait(10)
        return {"n": n}

    pool = WorkerPool([Station(f"s{i}", waits) for i in range(count)], seconds=1)
    task = pool.submit({"n": 4})
    assert not task.done()
    assert not task.wait(0.01)
    go.set()
    assert task.wait(10)
    assert task.worker.startswith("s")
    pool.close()
