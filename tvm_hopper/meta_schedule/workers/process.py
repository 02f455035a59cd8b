"""A worker process as its parent sees it: start, call with a deadline, restart.

The deadline is the parent's: a worker may crash, exit, or hang in C with Python's lock in hand. It
is started afresh, by `exec`, never forked: the parent may have threads, and CUDA in use.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from . import messages

START_SECONDS = 120.0  # TVM and a CUDA context, on a busy machine
STOP_SECONDS = 5.0
TAIL = 400  # characters of a worker's last words
ROOT = Path(__file__).resolve().parents[3]  # where this very package is found


class WorkerLost(Exception):
    """A worker died or hung over a request; the message says how."""


class WorkerNotStarted(WorkerLost):
    """A worker could not begin; no request is to blame."""


class WorkerGone(WorkerLost):
    """A worker is away for good, through no fault of the request: its host, or the way there."""


class WorkerProcess:
    """A process that answers requests, one at a time; started on the first, replaced after a loss.

    - `name`: in messages, e.g. "GPU 3".
    - `role`: what it does: a key of `worker.ROLES`.
    - `settings` (dict): for its role, as JSON has it.
    - `environment`: variables that it gets next to those of this process.
    - `start_seconds`: until it has said that it is ready.
    """

    def __init__(
        self,
        name: str,
        role: str,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.name = name
        self.about: dict[str, Any] = {}  # what it has said of itself
        self._role = role
        self._settings = dict(settings or {})
        self._environment = dict(environment or {})
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] | None = None
        self._requests = self._replies = -1

    @property
    def pid(self) -> int | None:
        """Process id while there is one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process if there is none; raise WorkerNotStarted if it does not get ready."""
        if self._process is not None:
            return
        hear, self._requests = os.pipe()
        self._replies, say = os.pipe()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (until the process ends)
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "tvm_hopper.meta_schedule.worker"]
        try:
            process = subprocess.Popen(
                [*command, self._role, str(os.getpid()), str(hear), str(say)],
                pass_fds=(hear, say),
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **self._environment},
                start_new_session=True,  # Ctrl-C is the parent's; its children end with it
            )
        finally:
            os.close(hear)
            os.close(say)
        self._process = process
        try:
            self._ask(self._settings, self._start_seconds, self._replies)
        except WorkerLost as error:
            raise WorkerNotStarted(f"cannot start: {error}") from None

    def call(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Have a request answered.

        - `request` (mapping): as JSON has it.
        - `seconds`: deadline, from when the process has started.
        - returns (dict): what its role returned; or `error`, a text, where that raised an
          exception.
        - raises WorkerLost: it died, hung, or said that it cannot go on. The next call starts
          another.
        """
        self.start()
        return self._ask({**request, "deadline": seconds}, seconds, self._replies)

    def _ask(self, request: Mapping[str, Any], seconds: float, replies: int) -> dict[str, Any]:
        try:
            messages.send(self._requests, dict(request))
            reply = messages.receive(replies, seconds)
        except messages.DeadlinePassed:
            self.stop()
            raise WorkerLost(f"no answer after {seconds:g} s; the process was killed") from None
        except messages.ConnectionEnded:
            raise WorkerLost(self._end()) from None
        if "about" in reply:
            self.about = reply["about"]
        if reply.get("is_lost"):
            self.stop()
            raise WorkerLost(str(reply.get("error")))
        return reply

    def _end(self) -> str:
        """Stop the process; return its exit status and last output."""
        process, words = self._process, self._words
        if process is None:
            return "the process was stopped"
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        how = _exit_text(code)
        tail = ""
        if words is not None:
            words.seek(0, os.SEEK_END)
            words.seek(max(0, words.tell() - TAIL))
            tail = " ".join(words.read().decode(errors="replace").split())
        self.stop()
        return f"the process ended by {how}" + (f": {tail}" if tail else "")

    def stop(self) -> None:
        """End the process, if there is one; for the thread that calls it."""
        process = self._process
        if process is None:
            return
        self.interrupt()
        self._process = None
        for fd in (self._requests, self._replies):
            os.close(fd)
        if self._words is not None:
            self._words.close()
            self._words = None
        with contextlib.suppress(subprocess.TimeoutExpired):  # else it ends when the driver lets go
            process.wait(STOP_SECONDS)

    def interrupt(self) -> None:
        """Kill the process and what it started; from any thread: a call under way then ends."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            process.kill()


def _exit_text(code: int | None) -> str:
    if code is None:
        return "closing its pipe"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def remove_stale(folder: Path, prefix: str) -> None:
    """Remove this user's folders of a prefix whose process is gone."""
    for path in folder.glob(f"{prefix}*"):
        pid = path.name.removeprefix(prefix).partition("_")[0]
        if not pid.isdigit() or _is_running(int(pid)):
            continue
        if path.stat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
