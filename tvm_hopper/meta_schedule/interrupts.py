"""Handle Ctrl-C while builders and runners work.

Both are called through TVM's FFI, which makes any other error of a KeyboardInterrupt. So the signal
is noted, and the search ends itself at the next place where nothing is half done; a second one ends
the process as usual.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any


class InterruptNoted:
    """Notes Ctrl-C, in the main thread; elsewhere it does nothing."""

    def __init__(self) -> None:
        self.is_requested = False
        self._before: Any = None

    def __enter__(self) -> InterruptNoted:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was requested."""
        if self.is_requested:
            raise KeyboardInterrupt

    def _hear(self, *_: object) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
        print("interrupted: checking what was found; again to leave", file=sys.stderr)
