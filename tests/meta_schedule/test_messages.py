import contextlib
import os
import struct
import threading

import pytest

from tvm_hopper.meta_schedule.workers import messages


@pytest.fixture
def pipe():
    hear, say = os.pipe()
    yield hear, say
    for fd in (hear, say):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_a_message_comes_through_whole_however_large(pipe):
    hear, say = pipe
    message = {"text": "ä" * 300_000, "numbers": [1, 2.5, None]}
    thread = threading.Thread(target=messages.send, args=(say, message))
    thread.start()
    assert messages.receive(hear, 10) == message
    thread.join()


def test_a_deadline_passes_before_and_inside_of_a_message(pipe):
    hear, say = pipe
    with pytest.raises(messages.DeadlinePassed):
        messages.receive(hear, 0.01)
    os.write(say, struct.pack("<I", 100) + b"only a part")
    with pytest.raises(messages.DeadlinePassed):
        messages.receive(hear, 0.01)


def test_the_other_end_may_be_gone(pipe):
    hear, say = pipe
    os.close(say)
    with pytest.raises(messages.ConnectionEnded, match="end of file"):
        messages.receive(hear, 1)
    other_hear, other_say = os.pipe()
    os.close(other_hear)
    with pytest.raises(messages.ConnectionEnded):
        messages.send(other_say, {})
    os.close(other_say)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (struct.pack("<I", 3) + b"[1]", "type list"),
        (struct.pack("<I", 2) + b"{,", "no JSON"),
        (struct.pack("<I", messages.MOST_BYTES + 1), "bytes"),
    ],
)
def test_what_is_no_message_ends_the_connection(pipe, data, match):
    hear, say = pipe
    os.write(say, data)
    with pytest.raises(messages.ConnectionEnded, match=match):
        messages.receive(hear, 1)
