"""Main program of a worker: `python -m tvm_hopper.meta_schedule.worker ROLE ...`.

A role is a function that gets its settings and returns what answers requests. Roles are imported
here and named by the parent, never by what is measured. Which of them need TVM load it themselves.
"""

from __future__ import annotations

import errno
import importlib
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tvm_hopper.meta_schedule.workers import messages, parent
from tvm_hopper.meta_schedule.workers.pool import NOT_TRIED

ROLES = {  # role -> module and function that make its answerer
    "build": ("tvm_hopper.meta_schedule.measuring.compile", "answerer"),
    "schedule": ("tvm_hopper.meta_schedule.schedulers", "answerer"),
    "measure": ("tvm_hopper.meta_schedule.measuring.measure", "answerer"),
    "fake": ("tvm_hopper.meta_schedule.measuring.fake", "answerer"),
}

# A disk that is full, or took enough of one file: that says nothing of a kernel.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def main(argv: list[str]) -> int:
    """Answer requests until the parent closes its end."""
    role, starter, hear, say = argv[0], int(argv[1]), int(argv[2]), int(argv[3])
    parent.die_with_parent(starter)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer: Answer | None = None
        while True:
            request = messages.receive(hear)
            parent.alarm(float(request.pop("deadline", 0)))
            try:
                if answer is None:
                    module, name = ROLES[role]
                    answer, about = getattr(importlib.import_module(module), name)(request)
                    reply = {"about": about}
                else:
                    reply = answer(request) if request else {}  # {}: are you there?
            except Exception as error:
                reply = {"error": _text(error)}
                if answer is None or isinstance(error, messages.CannotGoOn):
                    messages.send(say, {**reply, "is_lost": True})
                    return 1
            parent.alarm(0)
            messages.send(say, reply)
    except messages.ConnectionEnded:
        return 0


def _text(error: Exception) -> str:
    """Return an exception as text, with its kind and place if it is none of ours."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return f"{NOT_TRIED}{error}; need room for temporary files"
    if isinstance(error, messages.CannotGoOn) or "; need " in str(error):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
