"""CUDA driver bindings for measuring: memory, events, a kernel that reads clocks.

TVM's runtime works in the device's primary context and on its default stream; so does this.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_hopper.meta_schedule.workers.messages import CannotGoOn

CLOCK_CYCLES = 100_000  # that the clock kernel spins: 50 us
_RECORD = 16  # bytes of one of its results: cycles, nanoseconds

# Runs for some cycles of an SM and says how long that was: the clock, as it is just then. PTX, so
# that a machine that measures needs no compiler.
_CLOCK_PTX = b"""
.version 7.8
.target sm_80
.address_size 64
.visible .entry read_clock(.param .u64 result, .param .u64 cycles)
{
    .reg .pred %again;
    .reg .b64 %to, %most, %c0, %c1, %t0, %t1;
    ld.param.u64 %to, [result];
    ld.param.u64 %most, [cycles];
    mov.u64 %t0, %globaltimer;
    mov.u64 %c0, %clock64;
SPIN:
    mov.u64 %c1, %clock64;
    sub.u64 %c1, %c1, %c0;
    setp.lt.u64 %again, %c1, %most;
    @%again bra SPIN;
    mov.u64 %t1, %globaltimer;
    sub.u64 %t1, %t1, %t0;
    st.global.u64 [%to], %c1;
    st.global.u64 [%to+8], %t1;
    ret;
}
\x00"""


@dataclass(frozen=True)
class DeviceFacts:
    """The device of a measurement."""

    name: str
    uuid: str
    num_sms: int
    megahertz: float  # highest clock of an SM
    l2_bytes: int
    arch: str
    driver: str
    power_limit_watts: float | None
    memory_rate: float = 0.0  # bytes a second that its memory moves at most; 0: not known


class Driver:
    """The one GPU that this process sees.

    - raises HopperError: there is no driver, or no GPU.
    """

    kind = "cuda"  # TVM's name of the device

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._cuda = driver
        self.call("cuInit", 0)
        self.device = self.call("cuDeviceGet", 0)
        self.context = self.call("cuDevicePrimaryCtxRetain", self.device)
        self.call("cuCtxSetCurrent", self.context)
        self._clock_kernel: Any = None

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver; an error of the device ends this process' work."""
        status, *results = getattr(self._cuda, name)(*arguments)
        if status != self._cuda.CUresult.CUDA_SUCCESS:
            raise CannotGoOn(f"{name}: the driver says {status.name}")
        return results[0] if len(results) == 1 else tuple(results)

    def attribute(self, name: str) -> int:
        """Return an attribute of the device."""
        which = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", which, self.device))

    def facts(self) -> DeviceFacts:
        """Describe the device."""
        name = self.call("cuDeviceGetName", 100, self.device)
        text = name.split(b"\0")[0].decode() if isinstance(name, bytes) else str(name)
        uuid = bytes(self.call("cuDeviceGetUuid", self.device).bytes).hex()
        major, minor = (self.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        driver, watts = _from_smi(uuid)
        return DeviceFacts(
            name=text,
            uuid=uuid,
            num_sms=self.attribute("MULTIPROCESSOR_COUNT"),
            megahertz=self.attribute("CLOCK_RATE") / 1e3,
            l2_bytes=self.attribute("L2_CACHE_SIZE"),
            arch=f"sm_{major}{minor}",
            driver=driver,
            power_limit_watts=watts,
            memory_rate=self._memory_rate(),
        )

    def _memory_rate(self) -> float:
        try:
            kilohertz = self.attribute("MEMORY_CLOCK_RATE")
            bits = self.attribute("GLOBAL_MEMORY_BUS_WIDTH")
        except (AttributeError, CannotGoOn):  # a driver that tells neither
            return 0.0
        return 2e3 * kilohertz * bits / 8  # twice a clock

    # -- memory

    def allocate(self, num_bytes: int) -> int:
        """Return the address of new memory."""
        return int(self.call("cuMemAlloc", max(num_bytes, 1)))

    def fill(self, address: int, byte: int, num_bytes: int) -> None:
        """Set bytes, after what is queued."""
        self.call("cuMemsetD8Async", address, byte, num_bytes, 0)

    def download(self, address: int, num_bytes: int) -> bytes:
        """Return bytes, when all that is queued is done."""
        data = np.empty(num_bytes, np.uint8)
        self.call("cuMemcpyDtoH", data.ctypes.data, address, num_bytes)
        return data.tobytes()

    # -- time

    def event(self) -> Any:
        """Return a new event."""
        return self.call("cuEventCreate", 0)

    def record(self, event: Any, stream: Any = 0) -> None:
        """Queue an event."""
        self.call("cuEventRecord", event, stream)

    def seconds_between(self, first: Any, second: Any) -> float:
        """Return the time between two events that have come to pass."""
        return float(self.call("cuEventElapsedTime", first, second)) * 1e-3

    def synchronize(self) -> None:
        """Wait for all that is queued."""
        self.call("cuCtxSynchronize")

    # -- calls as one graph

    @contextmanager
    def new_stream(self) -> Iterator[Any]:
        """Make a stream, on which calls can be captured."""
        stream = self.call("cuStreamCreate", 0)
        yield stream
        self.call("cuStreamDestroy", stream)

    def capture(self, stream: Any, first: Callable[[], Any], calls: Callable[[], Any]) -> Any:
        """Return a graph of what some calls queue on a stream of their own.

        What a first call does once, `first`, is no part of it.
        """
        import tvm_ffi

        mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with tvm_ffi.use_raw_stream(tvm_ffi.device(self.kind, 0), int(stream)):
            first()
            self.synchronize()
            self.call("cuStreamBeginCapture", stream, mode)
            try:
                calls()
            finally:
                graph = self.call("cuStreamEndCapture", stream)
        made = self.call("cuGraphInstantiate", graph, 0)
        self.call("cuGraphDestroy", graph)
        return made

    def launch(self, graph: Any, stream: Any) -> None:
        """Queue a graph."""
        self.call("cuGraphLaunch", graph, stream)

    def queue_clock(self, results: int, index: int) -> None:
        """Queue the clock kernel; its result is the `index`-th at `results`."""
        if self._clock_kernel is None:
            self._module = self.call("cuModuleLoadData", _CLOCK_PTX)
            self._clock_kernel = self.call("cuModuleGetFunction", self._module, b"read_clock")
        values = (results + index * _RECORD, CLOCK_CYCLES)
        kinds = (ctypes.c_void_p, ctypes.c_uint64)
        ones = (1, 1, 1)
        self.call("cuLaunchKernel", self._clock_kernel, *ones, *ones, 0, 0, (values, kinds), 0)

    def read_clocks(self, results: int, count: int) -> list[float]:
        """Return the clocks in MHz that queued kernels have found."""
        data = memoryview(self.download(results, count * _RECORD)).cast("Q").tolist()
        return [1e3 * data[2 * i] / max(data[2 * i + 1], 1) for i in range(count)]


CLOCK_BYTES = _RECORD


def _from_smi(uuid: str) -> tuple[str, float | None]:
    """Ask nvidia-smi for what the driver's own interface does not say: driver, power limit."""
    fields = "uuid,driver_version,power.limit"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return "", None
    for line in done.stdout.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and parts[0].replace("-", "").lower().endswith(uuid):
            try:
                return parts[1], float(parts[2])
            except ValueError:
                return parts[1], None
    return "", None
