"""Worker pool: queue, deadlines, retries, retirement.

A task that breaks its worker is tried again on others. What breaks all of them is the task's fault;
what another one could do is the fault of those that could not. A worker at fault several times,
with no success of its own in between, is retired and the others go on; so is one that does nothing
but break, whosesoever fault it is. With none left, every task fails at once.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .process import WorkerGone, WorkerLost, WorkerNotStarted

logger = logging.getLogger("tvm_hopper.meta_schedule")
CLOSE_SECONDS = 5.0
NOT_TRIED = "not tried: "  # begins the error of a task that no worker has had
MOST_VANISHED = 5  # workers that may go away over one task
UNJUDGED = 4  # times as often may a worker break where no other one has checked its tasks


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(owner: Any) -> None:
    """Close a builder or a runner that is still there when Python ends."""
    _open.add(owner)


@atexit.register
def _close_all() -> None:
    for owner in list(_open):
        owner.close()


def _not_tried(message: str) -> dict[str, Any]:
    """Return the reply for tasks that no worker could take."""
    return {"error": f"{NOT_TRIED}{message}"}


class Station(Protocol):
    """A worker: a process, or a connection to one elsewhere."""

    name: str

    def call(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the reply; raise WorkerLost where the worker broke."""

    def stop(self) -> None:
        """Give up what is held; called by the thread that calls."""

    def interrupt(self) -> None:
        """Make a call under way end soon; called by any thread."""


class QueuedTask:
    """A request on its way, and its reply: `{"error": ...}` if there is no other."""

    def __init__(self, request: Mapping[str, Any], seconds: float | None = None) -> None:
        self.request = request
        self.seconds = seconds  # its deadline; None: that of the pool
        self.reply: dict[str, Any] = {}
        self.worker = ""  # name of the one that has answered
        self.losses: list[tuple[str, str]] = []  # name of a worker that it broke, and how
        self.vanished: list[str] = []  # workers that went away over it
        self._finished = threading.Event()

    def done(self) -> bool:
        """Tell whether the reply is there."""
        return self._finished.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the reply, at most so long; tell whether it is there."""
        return self._finished.wait(seconds)

    def finish(self, reply: dict[str, Any], worker: str = "") -> None:
        """Set the reply, once."""
        if not self.done():
            self.reply, self.worker = reply, worker
            self._finished.set()


@dataclass(eq=False)
class _Post:
    """A worker's place in the pool, with what it has to answer for."""

    station: Station
    lost: list[QueuedTask] = field(default_factory=list)  # since its last success
    faults: int = 0  # of these, how many are its own
    losses: int = 0  # of these and of those that were the task's fault, all of them
    is_busy: bool = False
    idle_since: float = field(default_factory=time.monotonic)
    is_leaving: bool = False
    last_words: str = ""
    thread: threading.Thread | None = None


class WorkerPool:
    """Workers that take tasks from one queue, a thread for each.

    - `stations`: to begin with.
    - `seconds`: deadline of a task.
    - `attempts`: workers that a task may break before it fails.
    - `retire_after`: times in a row that a worker may break.
    - `waits`: whether tasks wait while there is no worker, since others may come (`add`).
    """

    def __init__(
        self,
        stations: Sequence[Station] = (),
        *,
        seconds: float,
        attempts: int = 3,
        retire_after: int = 3,
        waits: bool = False,
    ) -> None:
        self.seconds = seconds
        self.retired: dict[str, str] = {}  # name -> what it did last
        self._attempts = attempts
        self._retire_after = retire_after
        self._waits = waits
        self._queue: deque[QueuedTask] = deque()
        self._places: list[_Post] = []
        self._changed = threading.Condition(threading.RLock())
        self._is_closed = False
        self._failure = ""  # why no task can be answered any more
        for station in stations:
            self.add(station)

    # -- for those who have tasks

    def submit(self, request: Mapping[str, Any], seconds: float | None = None) -> QueuedTask:
        """Queue a request; it fails at once if no worker is left.

        - `request` (mapping): as JSON has it.
        - `seconds`: its deadline; None: that of the pool.
        """
        task = QueuedTask(request, seconds)
        with self._changed:
            if self._failure:
                task.finish(_not_tried(self._failure))
            else:
                self._queue.append(task)
                self._changed.notify_all()
        return task

    def start(self) -> None:
        """Let all workers start, which takes seconds; without it the first tasks wait for them."""
        for _ in self.names:
            self.submit({})

    def fail(self, message: str) -> None:
        """Fail what waits and what is submitted from now on."""
        with self._changed:
            self._failure = message
            self.fail_waiting(message)

    def fail_waiting(self, message: str) -> None:
        """Fail what waits."""
        with self._changed:
            while self._queue:
                self._queue.popleft().finish(_not_tried(message))
            self._changed.notify_all()

    def close(self) -> None:
        """Stop all workers."""
        self.fail("the runner was closed")
        with self._changed:
            self._is_closed = True
            places, self._places = self._places, []
            for place in places:
                place.is_leaving = True
            self._changed.notify_all()
        for place in places:
            place.station.interrupt()
        for place in places:
            if place.thread is not None:
                place.thread.join(CLOSE_SECONDS)

    @property
    def names(self) -> list[str]:
        """Names of the workers that are left."""
        with self._changed:
            return [place.station.name for place in self._places]

    @property
    def waiting(self) -> int:
        """Tasks that no worker has taken."""
        with self._changed:
            return len(self._queue)

    @property
    def idle(self) -> int:
        """Workers with nothing to do."""
        with self._changed:
            return sum(not place.is_busy for place in self._places)

    # -- for those who bring workers

    def add(self, station: Station) -> None:
        """Let another worker take tasks."""
        place = _Post(station)
        with self._changed:
            if self._is_closed:
                station.stop()
                return
            self._places.append(place)
        name = f"worker {station.name}"
        place.thread = threading.Thread(target=self._serve, args=(place,), name=name, daemon=True)
        place.thread.start()

    def release_idle(self, seconds: float) -> None:
        """Let workers go that have had nothing to do for so long."""
        with self._changed:
            if self._queue:
                return
            now = time.monotonic()
            for place in self._places:
                if not place.is_busy and now - place.idle_since >= seconds:
                    place.is_leaving = True
            self._changed.notify_all()

    # -- a worker's thread

    def _serve(self, place: _Post) -> None:
        while (task := self._next(place)) is not None:
            try:
                reply = place.station.call(task.request, task.seconds or self.seconds)
            except WorkerLost as error:
                self._lost(place, task, error)
            except Exception as error:
                self._lost(place, task, WorkerLost(f"{type(error).__name__}: {error}"))
            else:
                self._answered(place, task, reply)
        place.station.stop()

    def _next(self, place: _Post) -> QueuedTask | None:
        with self._changed:
            place.is_busy, place.idle_since = False, time.monotonic()
            while not place.is_leaving:
                for task in self._queue:
                    if place.station.name not in [name for name, _ in task.losses]:
                        self._queue.remove(task)
                        place.is_busy = True
                        return task
                self._changed.wait()
            if place in self._places:
                self._places.remove(place)
            return None

    def _answered(self, place: _Post, task: QueuedTask, reply: dict[str, Any]) -> None:
        with self._changed:
            place.lost.clear()
            place.faults = place.losses = 0
            for other in list(self._places):
                if task in other.lost:
                    other.faults += 1
                    self._retire_if_faulty(other)
        task.finish(reply, place.station.name)

    def _lost(self, place: _Post, task: QueuedTask, error: WorkerLost) -> None:
        name = place.station.name
        with self._changed:
            if self._failure:  # closed while it was busy
                task.finish(_not_tried(self._failure))
                return
            logger.info("%s: %s", name, error)
            if isinstance(error, WorkerGone):
                task.vanished.append(f"{name}: {error}")
                place.is_leaving = True
                if place in self._places:
                    self._places.remove(place)
            else:
                place.last_words = str(error)
                place.lost.append(task)
                place.losses += 1
                if isinstance(error, WorkerNotStarted):
                    place.faults += 1
                else:
                    task.losses.append((name, str(error)))
            self._queue.appendleft(task)
            self._retire_if_faulty(place)
            self._sweep()
            self._changed.notify_all()

    def _retire_if_faulty(self, place: _Post) -> None:
        """Retire a worker that has broken too often in a row."""
        most = self._retire_after
        if place not in self._places or (place.faults < most and place.losses < UNJUDGED * most):
            return
        name, text = place.station.name, place.last_words
        logger.warning("%s: retired, it broke %d times in a row: %s", name, place.losses, text)
        self.retired[name] = text
        place.is_leaving = True
        self._places.remove(place)
        if not self._places and not self._waits:
            lost = "; ".join(f"{name} ({text})" for name, text in self.retired.items())
            self.fail(f"no worker is left: {lost}")
        self._sweep()
        self._changed.notify_all()

    def _sweep(self) -> None:
        """Fail the tasks that exceeded their retries or have no worker left."""
        for task in list(self._queue):
            tried = [name for name, _ in task.losses]
            someone = self._waits or any(x.station.name not in tried for x in self._places)
            if someone and len(tried) < self._attempts and len(task.vanished) < MOST_VANISHED:
                continue
            self._queue.remove(task)
            if len(tried) > 1:  # the task's fault
                for place in self._places:
                    place.lost[:] = [other for other in place.lost if other is not task]
            reasons = [f"{name}: {text}" for name, text in task.losses] + task.vanished
            task.finish({"error": "; then ".join(reasons)}, tried[-1] if tried else "")
