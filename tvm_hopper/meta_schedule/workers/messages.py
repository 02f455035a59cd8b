"""Messages between parent and worker: length-prefixed JSON over a pipe or socket.

Nothing that is received is executed; there is no pickle.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from typing import Any

_LENGTH = struct.Struct("<I")
MOST_BYTES = 1 << 30  # of one message: more can only be a broken header


class ConnectionEnded(Exception):
    """The other end is gone."""


class DeadlinePassed(Exception):
    """No whole message came in time."""


class CannotGoOn(Exception):
    """A worker's role raises it as its last word: the process is to be replaced."""


def send(fd: int, message: dict[str, Any]) -> None:
    """Write a message to a file descriptor; raise ConnectionEnded if the reader is gone."""
    data = json.dumps(message).encode()
    left = memoryview(_LENGTH.pack(len(data)) + data)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError as error:
        raise ConnectionEnded(str(error)) from error


def receive(fd: int, seconds: float | None = None) -> dict[str, Any]:
    """Read the next message from a file descriptor.

    - `fd`: of a pipe's reading end.
    - `seconds`: how long to wait for all of it; None: forever.
    - raises ConnectionEnded: the writing end was closed, or sent what is no message.
    - raises DeadlinePassed: it did not come in time.
    """
    end = None if seconds is None else time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_read(fd, _LENGTH.size, end))
    if length > MOST_BYTES:
        raise ConnectionEnded(f"a message of {length} bytes")
    try:
        message = json.loads(_read(fd, length, end))
    except ValueError as error:
        raise ConnectionEnded(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise ConnectionEnded(f"a message of type {type(message).__name__}")
    return message


def _read(fd: int, count: int, end: float | None) -> bytes:
    parts = []
    poll = select.poll()  # select() refuses file descriptors from 1024
    poll.register(fd, select.POLLIN)
    while count:
        if end is not None and not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            raise DeadlinePassed
        try:
            part = os.read(fd, min(count, 1 << 20))
        except OSError as error:
            raise ConnectionEnded(str(error)) from error
        if not part:
            raise ConnectionEnded("end of file")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
