"""Synchronising instructions, and the operands that the role skeleton keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, tirx

from tvm_hopper.sim.protocol.expr import UNKNOWN, Address, Closure, compile_expr, register_key
from tvm_hopper.sim.tir import (
    DTYPE_OF,
    PTX,
    PtxCall,
    decode_ptx,
    nodes_in,
    numpy_dtype,
    op_name,
    short_name,
)


@dataclass
class Emitter:
    """How one instruction becomes an event.

    - `kind`: of the event; empty if it leaves none.
    - `operands` (list): expressions, or functions of the environment, that give the event's values.
    - `constants` (tuple): further values, appended.
    - `registers` (list of (TensorLoad, count, is_write)): registers that the instruction itself
      touches (not an asynchronous multiply-add).
    - `sync`: whether control flow around it must be known.
    - `effect` (callable or None): its effect on the environment.
    """

    kind: str
    operands: list[Any] = field(default_factory=list)
    constants: tuple[Any, ...] = ()
    registers: list[tuple[Any, int, bool]] = field(default_factory=list)
    sync: bool = True
    effect: Callable[[dict[Any, Any], tuple[Any, ...]], None] | None = None


GRID = 16  # the barrier of the grid, next to the 16 named ones of a CTA

# Operations that move barriers; other events are local to a warp group.
BARRIER_KINDS = frozenset(
    (
        "wait", "try_wait", "arrive", "drop", "expect", "load", "copy_arrive", "barrier",
        "unknown_barrier", "cluster_sync", "cluster_arrive", "cluster_wait", "spin",
        "grid_sync",
    )
)  # fmt: skip

# Events that neither wait nor arrive: a loop over these alone belongs to the outer iteration.
COPY_KINDS = frozenset(("expect", "load"))


# Instructions that move barriers, or complete on their own, next to those that have an emitter.
_REFUSED = (
    *("mbarrier", "bar_", "barrier_", "cp_async_bulk", "cp_reduce_async_bulk", "st_async"),
    *("st_bulk", "red_async", "multimem", "tcgen05", "clusterlaunchcontrol", "fabric", "wgmma"),
)
_HARMLESS = ("cp_async_bulk_prefetch", "cp_async_bulk_tensor_prefetch")
_TRIES = tuple(f"{PTX}mbarrier_{kind}_wait_parity" for kind in ("try", "test"))


def is_unknown(call: ir.Call) -> bool:
    """Return whether a call without an emitter may synchronise in a way that is not known."""
    name = op_name(call)
    if not name.startswith(PTX):
        return False
    short = name[len(PTX) :]
    if short.startswith(_HARMLESS) or short == "addr":
        return False
    return short.startswith(_REFUSED) or decode_ptx(call) is None


def emitter_of(call: ir.Call) -> Emitter | None:
    """Return the emitter of a call, None if it does not synchronise."""
    name = op_name(call)
    if name.startswith(PTX):
        short = name[len(PTX) :]
        for prefix, make in _PTX:
            if short.startswith(prefix):
                ptx = decode_ptx(call)
                return None if ptx is None else make(ptx)
        return None
    make_plain = _PLAIN.get(short_name(call))
    return None if make_plain is None else make_plain(call)


def multiplies(body: Any) -> bool:
    """Return whether a function has a wgmma: else register accesses are not tracked."""
    calls = nodes_in(body, ir.Call)
    return any(op_name(call).startswith(f"{PTX}wgmma") for call in calls)


@dataclass(frozen=True)
class SpunWait:
    """A loop that tries one wait on an mbarrier: operands, the register with the result."""

    address: Any
    parity: Any
    key: tuple[Any, int]
    call: ir.Call


def spun_wait(loop: Any) -> SpunWait | None:
    """Recognise `while not ok: try_wait(ok, address, parity)`; nothing else may be in it."""
    calls = []
    statements = [loop.body]
    while statements:
        node = statements.pop()
        if isinstance(node, tirx.SeqStmt):
            statements += list(node.seq)
        elif isinstance(node, tirx.Evaluate):
            if isinstance(node.value, ir.Call) and short_name(node.value) != "cuda.nano_sleep":
                calls.append(node.value)
        else:
            return None
    if len(calls) != 1 or not op_name(calls[0]).startswith(_TRIES):
        return None
    ptx = decode_ptx(calls[0])
    if ptx is None or ptx.pred is not None or "phase" not in ptx.operands:
        return None
    target = ptx.operands["wait_complete"][0]
    is_load = isinstance(target, ir.TensorLoad)
    key = register_key(target.source, target.indices) if is_load else None
    return key and SpunWait(_one(ptx, "addr"), _one(ptx, "phase"), key, calls[0])


def _one(ptx: PtxCall, name: str) -> Any:
    return ptx.operands[name][0]


def _arrive(ptx: PtxCall) -> Emitter:
    drop = ptx.mods.get("action") == "arrive_drop"
    count = ptx.operands.get("count", [1])[0]
    if "expect_tx" in ptx.name:  # bytes, which TVM calls `count` where a state is returned
        values = [1, _one(ptx, "tx_count") if "tx_count" in ptx.operands else count]
    else:
        values = [count, 0]
    scope = ptx.mods.get("scope", "")
    return Emitter("drop" if drop else "arrive", [_one(ptx, "addr"), *values], (scope,))


def _try_wait(ptx: PtxCall) -> Emitter:
    return Emitter("try_wait", [_one(ptx, "addr")])


def _load(ptx: PtxCall) -> Emitter:
    source = ptx.operands.get("tmap") or ptx.operands["src_mem"]
    size, mask = ptx.operands.get("size"), ptx.operands.get("cta_mask")
    return Emitter(
        "load", [_one(ptx, "mbar"), size[0] if size else -1, mask[0] if mask else -1], (source[0],)
    )


def _remote_store(ptx: PtxCall) -> Emitter:
    if "mbar" not in ptx.operands:  # to global memory, of a later chip
        return Emitter("unknown_barrier")
    values = ptx.operands["b" if "b" in ptx.operands else "value"]
    size = len(values) * numpy_dtype(DTYPE_OF[ptx.mods["type"]]).itemsize
    return Emitter("load", [_one(ptx, "mbar"), size, -1], (values[0],))


def _store(ptx: PtxCall) -> Emitter:
    size = ptx.operands.get("size")
    return Emitter("bulk_store", [_one(ptx, "src_mem"), size[0] if size else -1])


def _loads(values: list[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, ir.TensorLoad)]


def _registers(values: list[Any], write: bool) -> list[tuple[Any, int, bool]]:
    return [(load, 1, write) for load in _loads(values)]


def _mma(ptx: PtxCall) -> Emitter:
    d, a = _loads(ptx.operands["d"]), _loads(ptx.operands.get("a", []))
    return Emitter("mma", [_register_range(d), _register_range(a)], (ptx.mods.get("shape", ""),))


def _register_range(loads: list[ir.TensorLoad]) -> Closure:
    """Return the buffer, first register and end of a fragment, whose registers ascend; or None."""
    if not loads or any(len(load.indices) != 1 for load in loads):
        return lambda env: None
    first, last = (compile_expr(load.indices[0]) for load in (loads[0], loads[-1]))

    def bounds(env: dict[Any, Any]) -> tuple[Any, int, int] | None:
        low, high = first(env), last(env)
        known = isinstance(low, int) and isinstance(high, int)
        return (loads[0].source, min(low, high), max(low, high) + 1) if known else None

    return bounds


def _mapa(ptx: PtxCall) -> Emitter:
    to = _one(ptx, "d")
    key = register_key(to.source, to.indices)

    def effect(env: dict[Any, Any], values: tuple[Any, ...]) -> None:
        address, rank = values
        known = isinstance(address, Address) and rank is not UNKNOWN
        env[key] = Address(address.space, address.offset, rank) if known else UNKNOWN

    return Emitter("", [_one(ptx, "a"), _one(ptx, "b")], sync=False, effect=effect)


def _bar(ptx: PtxCall) -> Emitter:
    count = ptx.operands.get("b")
    aligned = ptx.name.startswith("bar_") or ptx.mods.get("aligned") == "aligned"
    action = ptx.mods.get("action", "sync")
    if action not in ("sync", "arrive", "red"):
        return Emitter("unknown_barrier")
    return Emitter(
        "barrier", [_one(ptx, "a"), count[0] if count else -1], (action == "arrive", aligned)
    )


def _cluster(ptx: PtxCall) -> Emitter:
    return Emitter("cluster_wait" if "wait" in ptx.name else "cluster_arrive")


def _matrix(ptx: PtxCall, write_registers: bool) -> Emitter:
    return Emitter(
        "shared_matrix",
        [_one(ptx, "p")],
        (not write_registers,),
        _registers(ptx.operands["r"], write_registers),
        sync=False,
    )


def _mov(ptx: PtxCall) -> Emitter:
    touched = [*_registers(ptx.operands["a"], False), *_registers(ptx.operands["d"], True)]
    return Emitter("", registers=touched, sync=False)


def _init(ptx: PtxCall) -> Emitter:
    return Emitter("init", [_one(ptx, "addr"), _one(ptx, "count")])


def _wait_group(ptx: PtxCall) -> Emitter:
    return Emitter("bulk_wait", [_one(ptx, "group")], (ptx.mods.get("read", "") == "read",))


_PTX: tuple[tuple[str, Callable[[PtxCall], Emitter]], ...] = (
    ("mbarrier_init", _init),
    ("mbarrier_inval", lambda p: Emitter("inval", [_one(p, "addr")])),
    ("mbarrier_arrive", _arrive),
    ("mbarrier_pending_count", lambda p: Emitter("", sync=False)),
    ("mbarrier_expect_tx", lambda p: Emitter("expect", [_one(p, "addr"), _one(p, "tx_count")])),
    ("mbarrier_try_wait", _try_wait),
    ("mbarrier_test_wait", _try_wait),
    ("cp_async_bulk_tensor_g2s", _load),
    ("cp_async_bulk_g2s", _load),
    ("cp_async_bulk_s2c", _load),
    ("cp_reduce_async_bulk_s2c", _load),
    ("st_async", _remote_store),
    ("red_async", _remote_store),
    ("cp_async_bulk_tensor_s2g", _store),
    ("cp_async_bulk_s2g", _store),
    ("cp_reduce_async_bulk_s2g", _store),
    ("cp_reduce_async_bulk_tensor", _store),
    ("cp_async_bulk_commit_group", lambda p: Emitter("bulk_commit")),
    ("cp_async_bulk_wait_group", _wait_group),
    (
        "cp_async_mbarrier_arrive",
        lambda p: Emitter("copy_arrive", [_one(p, "addr")], (p.mods.get("noinc") == "noinc",)),
    ),
    ("wgmma_fence", lambda p: Emitter("mma_fence")),
    ("wgmma_commit_group", lambda p: Emitter("mma_commit")),
    ("wgmma_wait_group", lambda p: Emitter("mma_wait", [_one(p, "group")])),
    ("wgmma_", _mma),
    ("mapa", _mapa),
    ("bar_", _bar),
    ("barrier_cluster", _cluster),
    ("barrier_", _bar),
    ("setmaxnreg", lambda p: Emitter("setmaxnreg", [_one(p, "nreg")], (p.mods["action"],))),
    ("fence_proxy_tensormap", lambda p: Emitter("", sync=False)),
    ("fence_proxy", lambda p: Emitter("proxy_fence", [], (p.mods.get("space", ""),))),
    ("mov", _mov),
    ("ldmatrix", lambda p: _matrix(p, True)),
    ("stmatrix", lambda p: _matrix(p, False)),
)
_PLAIN: dict[str, Callable[[ir.Call], Emitter]] = {
    **dict.fromkeys(
        ("cuda.mbarrier_wait", "cuda.mbarrier_wait_acquire_cluster"),
        lambda c: Emitter("wait", list(c.args[:2])),
    ),
    **dict.fromkeys(
        ("cuda.cta_sync", "cuda.syncthreads_and", "cuda.syncthreads_or"),
        lambda c: Emitter("barrier", [0, -1], (False, True)),
    ),
    "cuda.cluster_sync": lambda c: Emitter("cluster_sync"),
    "cuda.grid_sync": lambda c: Emitter("grid_sync", [GRID, -1], (False, False)),
    "cuda.warpgroup_sync": lambda c: Emitter("barrier", [c.args[0], 128], (False, True)),
    "cuda.wait_until": lambda c: Emitter("spin"),
    "tvm_storage_sync": lambda c: (
        Emitter("", sync=False)
        if str(c.args[0].value) == "warp"
        else Emitter("barrier", [0, -1], (False, True))
    ),
}
