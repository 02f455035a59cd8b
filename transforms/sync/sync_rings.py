"""Ring buffers as the sync engine sees them: their writers, and overlays of their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tvm_hopper import ir
from tvm_hopper.analysis.effects import find_effects
from tvm_hopper.facts.async_ops import ASYNC, ASYNC_OPS
from tvm_hopper.requests.keys import ASYNC_OP, CHANNEL, HANDED_ON, STORE_RING
from tvm_hopper.sync import Buffer, Space
from tvm_hopper.transforms.common.overlay_pairs import find_overlays

REGISTERS = ("local", "warp")  # scopes; TVM deals the elements of "warp" out to the lanes of a warp
Proxy = Literal["generic", "async"]


@dataclass(frozen=True)
class RingNames:
    """The arrays of a kernel that have slots or lie in bytes of others, by name and by number.

    `channels` are those that channels fill and that stores empty, `handed_on` the arrays that
    threads write, whose slots the iterations of a channel count.
    """

    buffers: dict[ir.Var, Buffer]
    channels: dict[int, list[ir.Var]]
    handed_on: dict[int, list[ir.Var]]


def find_rings(kernel: Any) -> RingNames:
    """Find them in a kernel."""
    channels: dict[int, list[ir.Var]] = {}
    slots: dict[str, int] = {}
    names: dict[ir.Var, str] = {}
    proxies: dict[str, Proxy] = {}
    for number, rings, proxy in _find_filled(kernel):
        channels.setdefault(number, []).extend(rings)
        # The rings that a channel fills at once are one ring to the engine, with one wait.
        name = f"{rings[0].name}#{number}"
        slots.setdefault(name, int(rings[0].shape[0]))
        proxies.setdefault(name, proxy)
        names = {**dict.fromkeys(rings, name), **names}
    handed_on: dict[int, list[ir.Var]] = {}
    for block in ir.find_blocks(kernel, HANDED_ON):
        for ring in block.alloc_buffers:
            handed_on.setdefault(int(block.annotations[HANDED_ON]), []).append(ring)
            names[ring] = f"{ring.name}#{len(names)} handed on"
            slots[names[ring]] = int(ring.shape[0])
    return RingNames(_name(kernel, names, slots, proxies), channels, handed_on)


def of_elected_thread(kernel: Any, names: RingNames) -> dict[ir.Var, Buffer]:
    """Mark the buffers that nothing touches but operations which one thread issues."""
    blocks = ir.find_blocks(kernel, ASYNC_OP)
    rest = ir.replace_nodes(kernel, ir.SBlock, {x: ir.with_block(x, body=ir.seq()) for x in blocks})
    others = [x for x in blocks if not ASYNC_OPS[str(x.annotations[ASYNC_OP])].by_one_thread]
    touched = [x.buffer for x in find_effects(rest)]
    touched += [region.source for x in others for region in (*x.reads, *x.writes)]
    plain = {buffer.name for var, buffer in names.buffers.items() if _is_among(var, touched)}
    return {
        var: replace(x, by_thread=not (x.overlays or x.name in plain))
        for var, x in names.buffers.items()
    }


def _is_among(var: ir.Var, others: list[ir.Var]) -> bool:
    return any(var.same_as(x) for x in others)


def _name(
    kernel: Any,
    names: dict[ir.Var, str],
    slots: Mapping[str, int],
    proxies: Mapping[str, Proxy],
) -> dict[ir.Var, Buffer]:
    pairs = find_overlays(kernel)
    for var in (x for pair in pairs for x in pair):
        names.setdefault(var, f"{var.name}#{len(names)} in shared bytes")
    buffers = {}
    for var, name in names.items():
        meets = frozenset(
            names[y] for pair in pairs for x, y in (pair, pair[::-1]) if names[x] == name
        )
        proxy = proxies.get(name, "async")
        buffers[var] = Buffer(name, space_of(var), slots.get(name, 1), meets, proxy)
    return buffers


def space_of(var: ir.Var) -> Space:
    """Return where a buffer lies."""
    scope = str(var.scope())
    if scope == ir.VTCM:
        return "vtcm"
    if ir.is_shared(var):
        return "shared"
    return "registers" if scope.startswith(REGISTERS) else "global"


def _find_filled(kernel: Any) -> Iterator[tuple[int, list[ir.Var], Proxy]]:
    """Yield what has slots, by number: what channels fill, by which proxy, and stores empty."""
    for load in ir.find_blocks(kernel, CHANNEL):
        op = ASYNC_OPS[str(load.annotations[ASYNC_OP])]
        rings = [region.source for region in load.writes]
        yield int(load.annotations[CHANNEL]), rings, "async" if op.proxy == ASYNC else "generic"
    for store in ir.find_blocks(kernel, STORE_RING):
        rings = [region.source for region in store.reads if ir.is_shared(region.source)]
        yield int(store.annotations[STORE_RING]), rings, "async"
