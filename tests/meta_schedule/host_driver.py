"""A driver that is none: memory of the host, and a clock that functions move."""

import ctypes
from contextlib import contextmanager

import numpy as np

from tvm_hopper.meta_schedule.measuring.driver import DeviceFacts

FULL, NOW = 2000.0, 1500.0  # MHz: highest clock, and the one that is read


class HostDriver:
    """Memory of the host; time goes on with each call of the function."""

    kind = "cpu"

    def __init__(self):
        self.queue, self.now, self.kept = [], 0.0, []

    def facts(self):
        return DeviceFacts("none", "", 132, FULL, 1 << 10, "sm_90", "", None)

    def allocate(self, num_bytes):
        self.kept.append(np.empty(min(num_bytes, 1 << 20), np.uint8))
        return 0

    def fill(self, address, byte, num_bytes):
        self.queue.append("fill")
        if address:
            view(address, num_bytes)[:] = byte

    def download(self, address, num_bytes):
        return view(address, num_bytes).tobytes()

    def event(self):
        return [0.0]

    def record(self, event, _stream=0):
        self.queue.append("event")
        event[0] = self.now

    def seconds_between(self, first, second):
        return second[0] - first[0]

    def synchronize(self):
        self.queue.append("synchronize")

    @contextmanager
    def new_stream(self):
        yield 1

    def capture(self, _stream, first, calls):
        first()
        return calls

    def launch(self, graph, _stream):
        self.queue.append("graph")
        graph()

    def queue_clock(self, _results, _index):
        self.queue.append("clock")

    def read_clocks(self, _results, count):
        return [NOW] * count


def view(address, num_bytes):
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))
