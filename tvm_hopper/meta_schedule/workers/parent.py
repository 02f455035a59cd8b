"""End a worker with its parent or at its deadline, whatever it is doing.

It takes three means, since each alone leaves a gap. The kernel signals the parent's death on Linux.
The request pipe ends everywhere, but only between requests. An alarm's default action kills even a
process that holds Python's lock in C.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
GRACE = 5.0  # seconds that an alarm leaves to the parent, whose message is the better one


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    - `parent`: process id that the parent has said of itself: it may be gone by now.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def watch_parent(parent: int, period: float = 0.5) -> None:
    """End this process soon after its parent has ended; for processes that others start."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(period)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def alarm(seconds: float) -> None:
    """Be killed after some seconds; 0 takes the alarm back."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + GRACE if seconds else 0)
