"""All copy mechanisms by name, for parametrised tests.

run = mechanisms.build(mechanisms.MECHANISMS["tma, ring"], 4096, 2048)["main"]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm

from tvm_hopper import schedule as hs

from . import copies
from .ampere_schedules import A100
from .copies import Extent, Route

H200 = "nvidia/nvidia-h200"
DTYPE = "int8"
THREADS = 128


@dataclass(frozen=True)
class Mechanism:
    """A route through shared memory on a chip."""

    route: Route
    target: Any = H200


def _route(load: str | None, store: str | None, stages: int | None = None, **more: Any) -> Route:
    return Route((16, 256), 6, load, store, stages, threads=THREADS, vector=16, **more)


def _all() -> dict[str, Mechanism]:
    found: dict[str, Mechanism] = {}
    loads, stores = ("tma", "bulk", "cp_async", None), ("tma", "bulk", None)
    for load, store in ((x, y) for x in loads for y in stores if x or y):
        name = f"{load or 'threads'} to {store or 'threads'}"
        found[name] = Mechanism(_route(load, store))
        if load:
            found[f"{name}, ring"] = Mechanism(_route(load, store, 4))
    for load in ("tma", "bulk", "cp_async"):
        producer = _route(load, None, 4, roles=hs.Roles(1))
        found[f"{load} to threads, producer"] = Mechanism(producer)
    found["cp_async to threads, sm_80"] = Mechanism(_route("cp_async", None), A100)
    found["cp_async to threads, ring, sm_80"] = Mechanism(_route("cp_async", None, 4), A100)
    return found


MECHANISMS = _all()
"""By name; next to a producer cp.async hands over by mbarriers, without one it waits for groups."""


def module(mechanism: Mechanism, rows: Extent, columns: Extent, name: str = "main") -> Any:
    """Schedule a copy of bytes by a mechanism, as a function of a name."""
    mod = copies.schedule(copies.copy(rows, columns, dtype=DTYPE), mechanism.route).mod
    return tvm.IRModule({name: mod["main"].with_attr("global_symbol", name)})


def build(mechanism: Mechanism, rows: Extent, columns: Extent, name: str = "main") -> Any:
    """Compile a copy of bytes by a mechanism, as a function of a name."""
    return tvm.compile(module(mechanism, rows, columns, name), target=mechanism.target)
