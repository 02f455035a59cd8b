"""Progress line of a long verification, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

SILENT_S = 2.0  # no line is printed before
EVERY_S = 0.5  # on a terminal, where the line is written over
EVERY_LOG_S = 10.0  # elsewhere, where each line stays


class ProgressLine:
    """Prints the current step from time to time, while it is entered.

    - `wanted`: none: if the stream is a terminal, so that logs stay as they are.
    - `stream`: left out, stderr.
    - `name`: the work in progress, as a prefix.
    - `text` (str): the current step.
    """

    def __init__(
        self, wanted: bool | None = None, stream: TextIO | None = None, name: str = "verify"
    ) -> None:
        self.name = name
        self.stream = sys.stderr if stream is None else stream
        self.terminal = self.stream is not None and self.stream.isatty()
        self.wanted = self.terminal if wanted is None else wanted
        self.text = ""
        self.begun = time.monotonic()
        self.ended = threading.Event()
        self.shown = 0  # characters on the terminal's line
        self.thread: threading.Thread | None = None

    def __enter__(self) -> ProgressLine:
        """Begin."""
        if self.wanted and self.stream is not None:
            self.thread = threading.Thread(target=self._speak, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """End, and leave an empty line on a terminal."""
        self.ended.set()
        if self.thread is not None:
            self.thread.join()
        if self.shown:
            self._write(f"\r{' ' * self.shown}\r")

    def _speak(self) -> None:
        pause = SILENT_S
        while not self.ended.wait(pause):
            if not self.text:
                continue
            pause = EVERY_S if self.terminal else EVERY_LOG_S
            line = f"{self.name}: {time.monotonic() - self.begun:.0f} s, {self.text}"
            if self.terminal:
                self._write(f"\r{line.ljust(self.shown)}")
                self.shown = max(self.shown, len(line))
            else:
                self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # closed meanwhile: nothing reads it
            self.ended.set()
