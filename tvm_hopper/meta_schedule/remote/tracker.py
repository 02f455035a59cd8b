"""Query TVM's RPC tracker with deadlines.

The protocol is that of `tvm.rpc.tracker`: JSON after its length.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Any

from tvm.rpc import base

from tvm_hopper.errors import HopperError

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class TrackerAddress:
    """Where a tracker is, and under which key servers are requested."""

    host: str
    port: int
    key: str = ""

    @staticmethod
    def parse(text: str, *, needs_key: bool = True) -> TrackerAddress:
        """Read "host:port/key", or "host:port"; raise HopperError for anything else."""
        place, _, key = str(text).partition("/")
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16 or bool(key) != needs_key:
            form = "host:port/key" if needs_key else "host:port"
            raise HopperError(f'tracker: found {text!r}; need "{form}", as "127.0.0.1:9190/h200"')
        return TrackerAddress(host, int(port), key)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" + (f"/{self.key}" if self.key else "")


class TrackerClient:
    """A connection to a tracker.

    - raises HopperError: nobody answers there within a few seconds, or it is no tracker.
    """

    def __init__(self, address: TrackerAddress) -> None:
        self.address = address
        try:
            place = (address.host, address.port)
            self._socket = socket.create_connection(place, CONNECT_SECONDS)
        except OSError as error:
            raise self._missing(str(error)) from None
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            self._socket.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            (magic,) = struct.unpack("<i", base.recvall(self._socket, 4))
        except OSError as error:
            self.close()
            raise self._missing(str(error)) from None
        if magic != base.RPC_TRACKER_MAGIC:
            self.close()
            raise self._missing("something else answers there")

    def _missing(self, why: str) -> HopperError:
        place = f"{self.address.host}:{self.address.port}"
        return HopperError(
            f"tracker {place}: found no tracker ({why}); need TVM's; start one with "
            f"`python -m tvm.exec.rpc_tracker --host {self.address.host} --port "
            f"{self.address.port}`"
        )

    def free(self) -> int:
        """Return how many servers of our key wait for work; raise OSError without an answer."""
        return int(self._summary()["queue_info"].get(self.address.key, {}).get("free", 0))

    def servers(self) -> int:
        """Return how many servers of our key are connected, idle or not."""
        name = f"server:{self.address.key}"
        return sum(x.get("key") == name for x in self._summary()["server_info"])

    def _summary(self) -> dict[str, Any]:
        return dict(self._ask([base.TrackerCode.SUMMARY]))

    def request(self) -> tuple[str, int, str]:
        """Return host, port and match key of a server that is free; raise OSError without one."""
        host, port, match = self._ask([base.TrackerCode.REQUEST, self.address.key, "", 1])
        return str(host), int(port), str(match)

    def _ask(self, message: list[Any]) -> Any:
        base.sendjson(self._socket, message)
        code, value = base.recvjson(self._socket)
        if code != base.TrackerCode.SUCCESS:
            raise OSError(f"the tracker answers {code}")
        return value

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
